"""Running the image: its processes, a client of both eras, and what must be true in each way of running it."""

from __future__ import annotations

import base64
import ctypes
import fcntl
import hashlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.image.build import DEADLINE, PORT, ROOT, SKILLS, Buildah, Built, ImageError, Steps, run

LEGACY, MODERN = "2025-11-25", "2026-07-28"
INDEX: Final = "/.well-known/agent-skills/index.json"
META: Final = "io.modelcontextprotocol/"


@dataclass
class Client:
    """Speaks to the server of a container."""

    token: str | None = None
    session: str | None = None

    def connection(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """Send a request; the response, of which nothing but the head was read."""
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=DEADLINE)
        sent = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        if self.session is not None:
            sent["Mcp-Session-Id"] = self.session
            sent["MCP-Protocol-Version"] = LEGACY
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        return connection.getresponse()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text."""
        with self.connection("GET", path) as response:
            return response.status, response.read().decode().strip()

    def digest(self, path: str) -> str:
        """The digest of what is there."""
        with self.connection("GET", path) as response:
            return "sha256:" + hashlib.sha256(response.read()).hexdigest()

    def post(self, message: dict[str, Any], **headers: str) -> tuple[dict[str, Any], str | None]:
        """Post a message to /mcp; its answer, plain or as the event that bears it, and the session it opened."""
        with self.connection("POST", "/mcp", message, **headers) as response:
            session = response.getheader("Mcp-Session-Id")
            if response.status >= 300:
                raise ImageError(f"{message['method']}: HTTP {response.status} {response.read()[:300]!r}")
            if response.status == 202:
                return {}, session
            if (response.getheader("Content-Type") or "").startswith("application/json"):
                return _answer(json.loads(response.read())), session
            for line in response:
                if line.startswith(b"data:") and line[5:].strip():
                    received = json.loads(line[5:])
                    if received.get("id") == message["id"]:
                        return _answer(received), session
        raise ImageError(f"{message['method']}: the stream ended without an answer")

    def legacy(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask within the session."""
        return self.post({"jsonrpc": "2.0", "id": 2, "method": method, "params": params})[0]

    def open(self) -> dict[str, Any]:
        """The legacy handshake."""
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "image", "version": "1"}}
        opened = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        result, self.session = self.post(opened)
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def modern(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask with the envelope."""
        message, headers = _envelope(method, params)
        return self.post(message, **headers)[0]


def _envelope(method: str, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A message of the modern era and its headers."""
    meta = {
        META + "protocolVersion": MODERN,
        META + "clientInfo": {"name": "image", "version": "1"},
        META + "clientCapabilities": {},
    }
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if name := params.get("uri", params.get("name")):
        headers["Mcp-Name"] = name
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return message, headers


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    """The result.

    Raises:
        ImageError: it is an error.
    """
    if "error" in message:
        raise ImageError(f"an error came back: {message['error']}")
    return message["result"]


def talk(client: Client, steps: Steps) -> None:
    """Both eras: what is listed is what was mounted, and a file has the bytes of the disk."""
    expected = {str(each.parent.relative_to(SKILLS)) for each in SKILLS.rglob("SKILL.md")}
    for era in ("legacy", "modern"):
        if era == "legacy":
            shown = client.open()["protocolVersion"]
            ask = client.legacy
        else:
            client.session = None
            shown = ", ".join(client.modern("server/discover", {})["supportedVersions"])
            ask = client.modern
        listed: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        while True:
            page = ask("skills/list", params)
            listed += page["skills"]
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        paths = {entry["uri"].removeprefix("skill://").removesuffix("/SKILL.md") for entry in listed}
        steps.check(paths == expected, f"{era} ({shown}): skills/list has the {len(listed)} skills of the volume")
        uri = next(entry["uri"] for entry in listed if entry["uri"].startswith("skill://colour-palettes/"))
        for file in next(entry["resources"] for entry in listed if entry["uri"] == uri):
            (content,) = ask("resources/read", {"uri": file["uri"]})["contents"]
            raw = base64.b64decode(content["blob"]) if "blob" in content else content["text"].encode()
            if "sha256:" + hashlib.sha256(raw).hexdigest() != file["digest"]:
                raise ImageError(f"{file['uri']} does not have the digest of its listing")
        steps.check(True, f"{era}: resources/read gives the listed bytes of {uri}")
    published = json.loads(client.get(INDEX)[1])["skills"]
    proved = [entry["name"] for entry in published if client.digest(entry["url"]) == entry["digest"]]
    steps.check(
        len(proved) == len(published) == len(expected), f"discovery: {len(proved)} artifacts with their digests"
    )
    message = {"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": {"limit": 100}}
    with client.connection("POST", "/rpc", message) as response:
        reported = _answer(json.loads(response.read()))["skills"]
    steps.check(len(reported) == len(expected) + 1, f"/rpc: list_skills has {len(reported)}, one of them its guide")


def open_streams(client: Client) -> dict[str, http.client.HTTPResponse]:
    """A notification stream of each era, left open."""
    client.open()
    streams = {"legacy": client.connection("GET", "/mcp")}
    client.session = None
    message, headers = _envelope("subscriptions/listen", {"notifications": {"resourcesListChanged": True}})
    streams["modern"] = client.connection("POST", "/mcp", message, **headers)
    for stream in streams.values():
        if stream.status != 200:
            raise ImageError(f"a stream was not opened: HTTP {stream.status} {stream.read()[:300]!r}")
    for line in streams["modern"]:
        if b"notifications/subscriptions/acknowledged" in line:
            return streams
    raise ImageError("subscriptions/listen was not acknowledged")


ENDING: Final = 2.0
"""Seconds that the server may take to end."""
CLONE_NEWNET: Final = 0x40000000


def own_network() -> None:
    """Leave this machine's network: from here on there is a loopback of our own and nothing else.

    Raises:
        ImageError: that is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise ImageError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    flags, up = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, flags, struct.pack("16sh", b"lo", up))


@dataclass
class Running:
    """A server in a container."""

    process: subprocess.Popen[bytes]
    pid: int
    log: Path
    seconds: float
    """From the start of the container until it was ready."""

    def status(self, key: str) -> list[str]:
        """A line of /proc/PID/status."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return line.split()[1:]
        return []

    def processors(self) -> float:
        """Seconds of processors that it and the processes below it have taken so far."""
        ticks = 0
        for pid in (self.pid, *children(self.pid)):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    out: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            out += map(int, (task / "children").read_text().split())
    return out


def _server_below(pid: int) -> int | None:
    """The process of the server below the one that runs the container."""
    for child in children(pid):
        with suppress(OSError):
            line = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"/app/bin/mcp-skills-server" in line[:2] and os.readlink(f"/proc/{child}/exe").find("/python3") >= 0:
                return child
        found = _server_below(child)
        if found is not None:
            return found
    return None


@contextmanager
def started(command: Sequence[str], log: Path) -> Generator[Running]:
    """Start a container and wait until it is ready."""
    begun = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    pid: int | None = None
    try:
        end = begun + DEADLINE
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise ImageError(f"the server did not get ready (exit code {process.poll()}):\n{log.read_text()}")
            pid = pid or _server_below(process.pid)
            with suppress(OSError, http.client.HTTPException):
                if pid is not None and Client().get("/readyz")[0] == 200:
                    break
            time.sleep(0.02)
        yield Running(process, pid, log, time.monotonic() - begun)
    finally:
        for each in (pid, process.pid):
            if each is not None and process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)


def end_and_check(server: Running, client: Client, steps: Steps) -> None:
    """SIGTERM, with a stream of each era open."""
    streams = open_streams(client)
    now, most = (int(server.status(key)[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    steps.saw(f"memory: {now:.0f} MiB, at the most {most:.0f} MiB")
    begun = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    try:
        code = server.process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        raise ImageError("SIGTERM did not end it") from None
    took = time.monotonic() - begun
    steps.check(code == 0, f"SIGTERM, with a stream of each era open: exit code {code}")
    steps.check(took < ENDING, f"after {took:.2f} s")
    for era, stream in streams.items():
        try:
            received = stream.read()
        except http.client.IncompleteRead:
            raise ImageError(f"the {era} stream was cut off in the middle") from None
        said = next((line[5:].decode() for line in received.splitlines() if line.startswith(b"data:")), " nothing")
        steps.check(era == "legacy" or '"result"' in said, f"the {era} stream ended properly, its last word:{said}")
    reported = server.log.read_text().splitlines()
    for line in reported:
        if ": ok in " not in line:  # one for each request
            steps.saw(f"    {line}")
    wrong = [line for line in reported if line.startswith(("mcp-skills-server: ERROR", "Traceback"))]
    steps.check(not wrong, "no error in its log, above")


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
