"""The image, run in each way that there is, and what must be true of it there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.image.buildah import Buildah
from tools.image.building import Built
from tools.image.client import Client, talk
from tools.image.server import Running, end_and_check, started
from tools.image.settings import DEADLINE, ROOT, SKILLS
from tools.image.steps import Steps, run

REDIS_PORT: Final = 6379
TOKEN: Final = "image-test-" + os.urandom(16).hex()


def _snapshot(place: Path) -> dict[str, tuple[int, ...]]:
    """Every file of a root file system, so that a write shows."""
    out: dict[str, tuple[int, ...]] = {}
    for folder, directories, files in os.walk(place):
        for name in (*directories, *files):
            found = os.lstat(os.path.join(folder, name))
            mark = (found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns, found.st_ino)
            out[os.path.relpath(os.path.join(folder, name), place)] = mark
    return out


def _differences(before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Paths that came, went or changed."""
    return sorted(each for each in before.keys() | after.keys() if before.get(each) != after.get(each))


def run_by_buildah(built: Built, buildah: Buildah, scratch: Path, steps: Steps) -> None:
    """The image as buildah runs it: its user, its environment, its entry point."""

    def command(program: Sequence[str], *options: str) -> list[str]:
        mount = f"{SKILLS}:/skills:ro"
        chroot = ("run", "--isolation", "chroot", "--volume", mount)
        return buildah.command(*chroot, *options, built.container, "--", *program)

    place, config = built.place, built.config
    program = [*config["Entrypoint"], *config["Cmd"]]

    steps.step("run without configuration: it must not be open to everybody")
    done = subprocess.run(command(program), capture_output=True, text=True, timeout=DEADLINE, check=False)
    reported = [line for line in done.stderr.splitlines() if line.startswith("mcp-skills-server:")]
    steps.check(done.returncode == 2 and "Traceback" not in done.stderr, "exit code 2 and no traceback")
    steps.check(len(reported) == 1 and "refusing to listen on 0.0.0.0" in reported[0], f"one line: {reported[0]}")

    steps.step("run by buildah, MCP_SKILLS_ALLOWED_HOST=127.0.0.1")
    before = _snapshot(place)
    with started(command(program, "--env", "MCP_SKILLS_ALLOWED_HOST=127.0.0.1"), scratch / "buildah.log") as server:
        client = Client()
        steps.check(client.get("/healthz") == (200, "alive"), "/healthz: 200 alive")
        steps.check(client.get("/readyz") == (200, "ready"), "/readyz: 200 ready")
        uids, gids = server.status("Uid"), server.status("Gid")
        steps.check(set(uids) == set(gids) == {"10001"}, f"uid and gid of the process: {uids[0]}, {gids[0]}")
        talk(client, steps)
        healthcheck = command(config["Healthcheck"]["Test"][1:])
        checked = subprocess.run(healthcheck, capture_output=True, text=True, timeout=DEADLINE, check=False)
        steps.check(checked.returncode == 0, f"HEALTHCHECK: exit code 0, {checked.stdout.strip()!r}")
        with client.connection("POST", "/mcp", {}, Host="evil.example") as refused:
            steps.check(refused.status == 403, "a foreign Host: 403")
        end_and_check(server, client, steps)
    checked = subprocess.run(healthcheck, capture_output=True, text=True, timeout=DEADLINE, check=False)
    steps.check(checked.returncode == 1, f"HEALTHCHECK when it has ended: exit code 1, {checked.stdout.strip()!r}")
    # buildah itself puts a file into /run and takes it away again; archives wait for their readers in a nameless file.
    changed = [each for each in _differences(before, _snapshot(place)) if each not in {"run", "tmp"}]
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
def _locked(built: Built, scratch: Path, steps: Steps, temporary: bool = False, **more: str) -> Generator[Running]:
    """The image as an orchestrator runs it, with a file of tokens and, where that is asked for, a `/tmp` of its own."""
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
    with started(command, scratch / "locked.log") as server:
        took = f"{server.processors():.2f} s of processors"
        steps.saw(f"ready {server.seconds:.2f} s after its start, which took {took}")
        steps.check(server.status("NSpid")[-1] == "1", "the server is process 1, with no shell around it")
        steps.check(set(server.status("Uid")) == {"10001"}, f"its uid is {server.status('Uid')[0]}")
        yield server
        steps.check(TOKEN not in server.log.read_text(), "the token is not in the log")
    changed = _differences(before, _snapshot(place))
    steps.check(not changed, f"the root file system has not changed ({len(before)} files) {changed or ''}".rstrip())


def run_locked(built: Built, scratch: Path, steps: Steps) -> None:
    """The image as an orchestrator would run it."""
    steps.step("run as process 1: read-only root file system, no capabilities, no new privileges, a token file")
    with _locked(built, scratch, steps) as server:
        caps = {key: server.status(key)[0] for key in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")}
        steps.check({int(each, 16) for each in caps.values()} == {0}, "it has no capability, nor can it get one")
        steps.check(server.status("NoNewPrivs") == ["1"], "no new privileges")
        mounts = Path(f"/proc/{server.pid}/mounts").read_text().splitlines()
        writable = [line.split()[1] for line in mounts if "ro" not in line.split()[3].split(",")]
        read_only = [line.split()[1] for line in mounts if "ro" in line.split()[3].split(",")]
        steps.check({"/", "/skills"} <= set(read_only), f"mounted read-only: {' '.join(sorted(set(read_only)))}")
        steps.saw(f"mounted writable: {' '.join(sorted(set(writable))) or 'nothing'}")
        client = Client(token=TOKEN)
        steps.check(client.get("/healthz") == (200, "alive"), "/healthz: 200 alive")
        steps.check(Client().get("/readyz") == (200, "ready"), "/readyz: 200 ready, without a token")
        with Client().connection("POST", "/mcp", {}) as refused:
            steps.check(refused.status == 401, "/mcp without a token: 401")
        talk(client, steps)
        end_and_check(server, client, steps)


@contextmanager
def _redis(scratch: Path) -> Generator[None]:
    """A Redis of this machine, in the network of the image."""
    command = ["redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "", "--dir", str(scratch)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE)


def run_with_git(built: Built, buildah: Buildah, scratch: Path, steps: Steps) -> None:
    """The image with a repository as its root: the server fetches it as its own user."""
    sys.path.insert(0, str(ROOT / "tests"))
    from sources.git.remotes import GitServer, Upstream, skill

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
            client = Client(token=TOKEN)
            listed = [each["frontmatter"]["name"] for each in client.modern("skills/list", {})["skills"]]
            steps.check(listed == ["from-git"], f"a repository is served: {listed}")
            end_and_check(server, client, steps)


def run_with_extras(built: Built, scratch: Path, steps: Steps, **more: str) -> None:
    """The second image, as an orchestrator would run it: with Redis, the page, and what more there is to say."""
    said = ", ".join(f"{key}={value}" for key, value in more.items())
    steps.step(f"run as process 1, read-only root file system, a /tmp in memory, Redis, the page, {said}")
    wanted = {"MCP_SKILLS_REDIS": f"redis://127.0.0.1:{REDIS_PORT}/0", "MCP_SKILLS_UI": "true", **more}
    with _redis(scratch), _locked(built, scratch, steps, temporary=True, **wanted) as server:
        client = Client(token=TOKEN)
        talk(client, steps)
        call = {"name": "skills_load", "arguments": {"names": ["meeting-notes"]}}
        receipt = client.modern("tools/call", call)["structuredContent"]
        keys = run(["redis-cli", "-p", str(REDIS_PORT), "dbsize"])
        steps.check(bool(receipt["session"]) and keys != "0", f"a session of the tools is in Redis: {keys} keys")
        if "MCP_SKILLS_METRICS" in more:
            status, text = client.get("/metrics")
            samples = [line for line in text.splitlines() if line and not line.startswith("#")]
            steps.check(status == 200 and "skills_" in text, f"/metrics: 200, {len(samples)} samples")
            steps.check(Client().get("/metrics")[0] == 401, "/metrics without a token: 401")
        status, text = client.get("/ui/")
        steps.check(status == 200 and "<html" in text, f"/ui/: 200, {len(text)} characters")
        end_and_check(server, client, steps)
