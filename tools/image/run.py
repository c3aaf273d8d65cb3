"""Runs of the image in each way, and checks of it by the clients of the tests."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tools.hosts.setting import loopback_up
from tools.image.build import DEADLINE, SKILLS, Buildah, Built, ImageError, Steps

from shared.redis_servers import redis_server
from sources.git.remotes import GitServer, Upstream, skill
from web.http_wire import HttpClient, Server, client, verify_files
from wire import Era

ENDING: Final = 2.0
"""Seconds in which the server must exit."""
CLONE_NEWNET: Final = 0x40000000
TOKEN: Final = "image-test-" + os.urandom(16).hex()
INDEX: Final = "/.well-known/agent-skills/index.json"
ERAS: Final[tuple[Era, Era]] = ("legacy", "modern")


def own_network() -> None:
    """Enter a new network namespace, which has nothing but loopback.

    Raises:
        ImageError: the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise ImageError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    loopback_up()


class Container(Server):
    """A ready server in a container. Leaving the context kills it.

    Args:
        token: the bearer token of its clients.
    """

    def __init__(self, command: Sequence[str], token: str | None = None) -> None:
        begun = time.monotonic()
        super().__init__(list(command))
        self.token = token
        found = _server_below(self.process.pid)
        if found is None:
            self.kill()
            raise ImageError(f"there is no server in the container: {self.stderr}")
        self.pid = found
        while self.get("/readyz")[0] != 200:
            time.sleep(0.02)
        self.seconds = time.monotonic() - begun

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the server, in the container too."""
        if self.process.poll() is None and (pid := _server_below(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().kill()

    def status(self, key: str) -> list[str]:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next((line.split()[1:] for line in lines if line.startswith(f"{key}:")), [])

    def get(self, path: str, token: str | None = None) -> tuple[int, bytes]:
        reply = self.send("GET", path, headers=_bearer(token))
        return reply.status, reply.body.strip()


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _server_below(pid: int) -> int | None:
    """Return the server's process below the container's."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    for child in children:
        with suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"/app/bin/mcp-skills-server" in words[:2] and "/python3" in os.readlink(f"/proc/{child}/exe"):
                return child
        found = _server_below(child)
        if found is not None:
            return found
    return None


def check_served_skills(server: Container, steps: Steps) -> None:
    """Check in both eras that the mounted skills are listed and files match their digests."""
    expected = {str(each.parent.relative_to(SKILLS)) for each in SKILLS.rglob("SKILL.md")}
    for era in ERAS:
        with client(server, era, token=server.token) as one:
            listed = one.every_skill()
            paths = {entry["uri"].removeprefix("skill://").removesuffix("/SKILL.md") for entry in listed}
            steps.check(paths == expected, f"{era}: skills/list has the {len(listed)} skills of the volume")
            count = sum(verify_files(one, entry) for entry in listed)
            steps.check(True, f"{era}: resources/read gives the listed bytes of {count} files")
    published = json.loads(server.get(INDEX, server.token)[1])["skills"]
    digests = {entry["digest"] for entry in published}
    bodies = [server.send("GET", entry["url"], headers=_bearer(server.token)).body for entry in published]
    seen = {"sha256:" + hashlib.sha256(body).hexdigest() for body in bodies}
    steps.check(seen == digests and len(bodies) == len(expected), f"discovery: {len(bodies)} artifacts with digests")
    message = {"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": {"limit": 100}}
    headers = {"Content-Type": "application/json", **_bearer(server.token)}
    (answer,) = server.send("POST", "/rpc", json.dumps(message).encode(), headers).messages
    reported = answer["result"]["skills"]
    steps.check(len(reported) == len(expected) + 1, f"/rpc: list_skills has {len(reported)}, one of them its guide")


def end_and_check(server: Container, steps: Steps) -> None:
    """Send SIGTERM while a stream of each era is open."""
    now, most = (int(server.status(key)[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    steps.note(f"memory: {now:.0f} MiB, at the most {most:.0f} MiB")
    with client(server, "legacy", token=server.token) as old, client(server, "modern", token=server.token) as new:
        streams = {"legacy": old.hear(), "modern": new.hear()}
        begun = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        code = server.process.wait(DEADLINE)
        took = time.monotonic() - begun
        steps.check(code == 0, f"SIGTERM, with a stream of each era open: exit code {code}")
        steps.check(took < ENDING, f"after {took:.2f} s")
        for era, stream in streams.items():
            messages = stream.rest()
            whole = bool(stream.whole) and (era == "legacy" or "result" in messages[-1])
            steps.check(whole, f"the {era} stream ended properly, its last message: {messages[-1:]}")
    server.kill()  # the server has ended; this reads the rest of its log
    lines = [line for line in server.stderr.splitlines() if ": ok in " not in line]  # one for each request
    for line in lines:
        steps.note(f"    {line}")
    wrong = [line for line in lines if line.startswith(("mcp-skills-server: ERROR", "Traceback"))]
    steps.check(not wrong, "no error in its log, above")


def _snapshot(place: Path) -> dict[str, tuple[int, ...]]:
    """Return every file of a root file system, to detect writes."""
    out: dict[str, tuple[int, ...]] = {}
    for folder, directories, files in os.walk(place):
        for name in (*directories, *files):
            found = os.lstat(os.path.join(folder, name))
            mark = (found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns, found.st_ino)
            out[os.path.relpath(os.path.join(folder, name), place)] = mark
    return out


def _differences(before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]) -> list[str]:
    return sorted(each for each in before.keys() | after.keys() if before.get(each) != after.get(each))


def run_by_buildah(built: Built, buildah: Buildah, steps: Steps) -> None:
    """Run the image as buildah does: its user, its environment, its entry point."""

    def command(program: Sequence[str], *options: str) -> list[str]:
        chroot = ("run", "--isolation", "chroot", "--volume", f"{SKILLS}:/skills:ro")
        return buildah.command(*chroot, *options, built.container, "--", *program)

    def run(program: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE, check=False)

    config = built.config
    program = [*config["Entrypoint"], *config["Cmd"]]
    steps.step("run without configuration: it must not be open to everybody")
    done = run(command(program))
    reported = [line for line in done.stderr.splitlines() if line.startswith("mcp-skills-server:")]
    steps.check(done.returncode == 2 and "Traceback" not in done.stderr, "exit code 2 and no traceback")
    steps.check(len(reported) == 1 and "refusing to listen on 0.0.0.0" in reported[0], f"one line: {reported[0]}")

    steps.step("run by buildah, MCP_SKILLS_ALLOWED_HOST=127.0.0.1")
    before = _snapshot(built.place)
    healthcheck = command(config["Healthcheck"]["Test"][1:])
    with Container(command(program, "--env", "MCP_SKILLS_ALLOWED_HOST=127.0.0.1")) as server:
        steps.check(server.get("/healthz") == (200, b"alive"), "/healthz: 200 alive")
        steps.check(server.get("/readyz") == (200, b"ready"), "/readyz: 200 ready")
        uids, gids = server.status("Uid"), server.status("Gid")
        steps.check(set(uids) == set(gids) == {"10001"}, f"uid and gid of the process: {uids[0]}, {gids[0]}")
        check_served_skills(server, steps)
        checked = run(healthcheck)
        steps.check(checked.returncode == 0, f"HEALTHCHECK: exit code 0, {checked.stdout.strip()!r}")
        refused = server.send("POST", "/mcp", b"{}", {"Host": "evil.example"})
        steps.check(refused.status == 403, "a foreign Host: 403")
        end_and_check(server, steps)
    checked = run(healthcheck)
    steps.check(checked.returncode == 1, f"HEALTHCHECK when it has ended: exit code 1, {checked.stdout.strip()!r}")
    # buildah creates and removes a file in /run; archives are spooled in an unnamed file.
    changed = [each for each in _differences(before, _snapshot(built.place)) if each not in {"run", "tmp"}]
    steps.check(not changed, f"the root file system has not changed ({len(before)} files) {changed or ''}".rstrip())


# Process 1 of its own process and mount namespace. Everything is read-only before the server starts.
_LOCKED: Final = """
set -e
mount --bind "$PLACE" "$PLACE"
mount --bind "$SKILLS" "$PLACE/skills"
mount -o remount,bind,ro "$PLACE/skills"
mount --bind "$TOKENS" "$PLACE/run/secrets/tokens"
mount -o remount,bind,ro "$PLACE/run/secrets/tokens"
mount -t proc proc "$PLACE/proc"
mount -t tmpfs -o mode=755 tmpfs "$PLACE/dev"
for each in null zero full random urandom; do : > "$PLACE/dev/$each"; mount --bind "/dev/$each" "$PLACE/dev/$each"; done
ln -s /proc/self/fd "$PLACE/dev/fd"
mount -o remount,ro "$PLACE/dev"
mount -o remount,bind,ro,nosuid,nodev "$PLACE"
if touch "$PLACE/tmp/written" 2> /dev/null; then echo "the root file system can be written to"; exit 97; fi
if [ "$TEMPORARY" ]; then mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$PLACE/tmp"; fi
exec chroot "$PLACE" /usr/bin/setpriv --reuid "${USERS%:*}" --regid "${USERS#*:}" --clear-groups \\
    --no-new-privs --bounding-set=-all --inh-caps=-all -- /usr/bin/env -i "$@"
"""


@contextmanager
def _locked(built: Built, scratch: Path, steps: Steps, temporary: bool = False, **more: str) -> Generator[Container]:
    """Run the image as an orchestrator does, with a token file and, if `temporary`, its own `/tmp`."""
    place, config = built.place, built.config
    tokens = scratch / "tokens"
    tokens.write_text(f"# for the test\nimage={TOKEN}\n", encoding="utf-8")
    os.chown(tokens, 0, int(config["User"].partition(":")[2]))
    tokens.chmod(0o440)
    (place / "run" / "secrets").mkdir(exist_ok=True)
    (place / "run" / "secrets" / "tokens").touch()
    before = _snapshot(place)
    variables = {"PLACE": place, "SKILLS": SKILLS, "TOKENS": tokens, "USERS": config["User"]}
    command = [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"),
        *("env", *(f"{key}={value}" for key, value in variables.items()), f"TEMPORARY={'yes' if temporary else ''}"),
        *("sh", "-c", _LOCKED, "sh", *config["Env"], "MCP_SKILLS_TOKEN_FILE=/run/secrets/tokens"),
        *(*(f"{key}={value}" for key, value in more.items()), *config["Entrypoint"], *config["Cmd"]),
    ]
    with Container(command, TOKEN) as server:
        steps.note(f"ready {server.seconds:.2f} s after its start")
        steps.check(server.status("NSpid")[-1] == "1", "the server is process 1, with no shell around it")
        steps.check(set(server.status("Uid")) == {"10001"}, f"its uid is {server.status('Uid')[0]}")
        yield server
        end_and_check(server, steps)
        steps.check(TOKEN not in server.stderr, "the token is not in the log")
    changed = _differences(before, _snapshot(place))
    steps.check(not changed, f"the root file system has not changed ({len(before)} files) {changed or ''}".rstrip())


def run_locked(built: Built, scratch: Path, steps: Steps) -> None:
    steps.step("run as process 1: read-only root file system, no capabilities, no new privileges, a token file")
    with _locked(built, scratch, steps) as server:
        caps = {key: server.status(key)[0] for key in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")}
        steps.check({int(each, 16) for each in caps.values()} == {0}, "it has no capability, nor can it get one")
        steps.check(server.status("NoNewPrivs") == ["1"], "no new privileges")
        mounts = [line.split() for line in Path(f"/proc/{server.pid}/mounts").read_text().splitlines()]
        read_only = {words[1] for words in mounts if "ro" in words[3].split(",")}
        steps.check({"/", "/skills"} <= read_only, f"mounted read-only: {' '.join(sorted(read_only))}")
        steps.check(server.get("/readyz") == (200, b"ready"), "/readyz: 200 ready, without a token")
        steps.check(server.send("POST", "/mcp", b"{}").status == 401, "/mcp without a token: 401")
        check_served_skills(server, steps)


def run_with_git(built: Built, buildah: Buildah, scratch: Path, steps: Steps) -> None:
    """Run the image with a repository as its root, which the server fetches as its own user."""
    steps.step("run as process 1, read-only root file system, a /tmp in memory, a root in git over HTTP")
    ssh = buildah.command("run", "--isolation", "chroot", built.container, "--", "ssh", "-G", "git.example")
    done = subprocess.run(ssh, capture_output=True, text=True, timeout=DEADLINE, check=False)
    known = next((line for line in done.stdout.splitlines() if line.startswith("userknownhostsfile")), done.stderr)
    steps.check(done.returncode == 0 and "/home/skills/.ssh/known_hosts" in known, f"ssh knows its user: {known}")
    (scratch / "git").mkdir()
    Upstream(scratch / "git" / "skills.git").commit(skill("from-git"))
    wanted = {"MCP_SKILLS_ALLOW_HTTP": "true", "MCP_SKILLS_ALLOW_PRIVATE": "true", "MCP_SKILLS_CACHE_DIR": "/tmp/cache"}
    with GitServer(scratch / "git") as origin:
        wanted["MCP_SKILLS_ROOTS"] = f"{origin.url}/skills.git#skills"
        with _locked(built, scratch, steps, temporary=True, **wanted) as server:
            listed = [each["frontmatter"]["name"] for each in HttpClient(server, "modern", token=TOKEN).every_skill()]
            steps.check(listed == ["from-git"], f"a repository is served: {listed}")


def run_with_extras(built: Built, scratch: Path, steps: Steps) -> None:
    """Run the second image, as an orchestrator would: with Redis, the page and metrics."""
    steps.step("run as process 1, read-only root file system, a /tmp in memory, Redis, the page, metrics")
    wanted = {"MCP_SKILLS_UI": "true", "MCP_SKILLS_METRICS": "true"}
    with (
        redis_server(scratch / "redis") as redis,
        _locked(built, scratch, steps, temporary=True, MCP_SKILLS_REDIS=redis.url, **wanted) as server,
    ):
        check_served_skills(server, steps)
        call: dict[str, Any] = {"name": "skills_load", "arguments": {"names": ["meeting-notes"]}}
        result = HttpClient(server, "modern", token=TOKEN).request("tools/call", call)
        keys = redis.all_keys()
        kept = bool(result["structuredContent"]["session"]) and bool(keys)
        steps.check(kept, f"a session of the tools is in Redis: {len(keys)} keys")
        status, text = server.get("/metrics", TOKEN)
        steps.check(status == 200 and b"skills_" in text, f"/metrics: 200, {len(text.splitlines())} lines")
        steps.check(server.get("/metrics")[0] == 401, "/metrics without a token: 401")
        status, text = server.get("/ui/", TOKEN)
        steps.check(status == 200 and b"<html" in text, f"/ui/: 200, {len(text)} characters")
