"""`make image`: build the container image and try it out, on a Debian machine without a Docker engine.

buildah builds with chroot isolation and the vfs driver, so neither a daemon nor a container runtime is needed, only
root. The base is a small Debian from debootstrap under the name that the Dockerfile's FROM asks for. The build has no
network: the wheels are fetched here, with this machine's pip, and mounted.

Then the image runs twice in a network namespace of its own, so that it may listen where it likes and reaches nobody:
as buildah runs it, and as an orchestrator would, with a read-only root, no capabilities and as process 1. So does a
second image, which has the extras that a team wants, with two workers beside a Redis of this machine.
Everything lives in a cache folder; the base stays there for the next time, and so do both images.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from mcp_skills_server.commands.serve import serve

ROOT: Final = Path(__file__).resolve().parent.parent
SKILLS: Final = ROOT / "fixtures" / "skills"
NAME: Final = "localhost/mcp-skills-server"
SUITE: Final = "bookworm"
PACKAGES: Final = "python3,python3-venv,ca-certificates"
NEEDED: Final = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "redis-server": "redis-server",
    "unshare": "util-linux",
}
EXTRAS: Final = ("metrics", "redis", "ui")
"""Of the second image."""
OLDER: Final = ("async-timeout",)
"""What an extra needs on the Python of the base, 3.11.2, alone: pip judges that by the Python it runs on."""
WORKERS: Final = 2
REDIS_PORT: Final = 6379
PORT: Final = 8000
DEADLINE: Final = 30.0
"""Seconds after which something that should happen counts as never happening."""
ENDING: Final = 2.0
"""Seconds that the server may take to end."""
LEGACY, MODERN = "2025-11-25", "2026-07-28"
INDEX: Final = "/.well-known/agent-skills/index.json"
META: Final = "io.modelcontextprotocol/"
TOKEN: Final = "image-test-" + os.urandom(16).hex()
CLONE_NEWNET: Final = 0x40000000


class ImageError(Exception):
    """Something is not as it should be."""


class Steps:
    """Prints what is done and seen."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def step(self, text: str) -> None:
        """A heading, with the time since the start."""
        print(f"\n[{time.monotonic() - self._begun:5.1f} s] {text}", flush=True)

    def saw(self, text: str) -> None:
        """A line below it."""
        print(f"          {text}", flush=True)

    def check(self, condition: bool, text: str) -> None:
        """A line that must be true.

        Raises:
            ImageError: it is not.
        """
        if not condition:
            raise ImageError(text)
        self.saw(f"ok  {text}")


def run(arguments: Sequence[str | Path], **options: Any) -> str:
    """Run a command and return its stdout; its stderr is shown only when it fails.

    Raises:
        ImageError: it fails.
    """
    done = subprocess.run([str(each) for each in arguments], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        reported = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise ImageError(f"{arguments[0]} failed with {done.returncode}: {' '.join(map(str, arguments))}\n{reported}")
    return done.stdout.strip()


@dataclass
class Buildah:
    """buildah with a storage of its own, and the containers that are to be removed."""

    storage: Path
    made: list[str] = field(default_factory=list)

    def command(self, *arguments: str | Path) -> list[str]:
        """The command line."""
        places = ["--root", str(self.storage / "root"), "--runroot", str(self.storage / "run")]
        return ["buildah", *places, "--storage-driver", "vfs", *map(str, arguments)]

    def __call__(self, *arguments: str | Path) -> str:
        """Run it and return its stdout."""
        return run(self.command(*arguments))

    def container(self, image: str) -> str:
        """A new container of an image."""
        name = self("from", "--pull-never", image)
        self.made.append(name)
        return name

    def remove(self, name: str) -> None:
        """Remove a container."""
        self("rm", name)
        self.made.remove(name)

    def clean(self) -> None:
        """Remove every container that was made here."""
        for name in list(self.made):
            with suppress(ImageError):
                self.remove(name)


# Building


def need_tools(install: bool) -> None:
    """See that the programs are there, and install them if that was asked for."""
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if not missing:
        return
    if not install:
        fail(f"needs {' and '.join(missing)}; run: apt-get install --no-install-recommends {' '.join(missing)}")
    # Recommends would bring a container runtime, which chroot isolation does without.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], env=environment)
    run(["apt-get", "install", "--yes", "--no-install-recommends", *missing], env=environment)


def make_base(buildah: Buildah, name: str, fresh: bool, steps: Steps) -> None:
    """A small Debian with Python under the name that FROM asks for."""
    steps.step(f"the base image, {name}")
    present = subprocess.run(buildah.command("inspect", "--type", "image", name), capture_output=True, check=False)
    if present.returncode == 0 and not fresh:
        steps.saw("kept from the last time (--fresh makes it anew)")
        return
    if present.returncode == 0:
        buildah("rmi", "--force", name)  # or it would stay, without a name
    container = buildah.container("scratch")
    place = Path(buildah("mount", container))
    run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, place])
    for dropped in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/locale"):
        for each in (place / dropped).glob("*"):
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    # What debootstrap copies from this machine does not belong into an image.
    for copied in ("etc/resolv.conf", "etc/hostname"):
        (place / copied).unlink(missing_ok=True)
    buildah("umount", container)
    buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "--cmd", "python3", container)
    buildah("commit", "--quiet", "--format", "docker", container, name)
    buildah.remove(container)
    steps.saw(f"made by debootstrap: Debian {SUITE}, {PACKAGES}")


def fetch_wheels(buildah: Buildah, base: str, wheels: Path, steps: Steps) -> None:
    """Everything that the build installs, as wheels for the Python of the base."""
    steps.step("the wheels, with this machine's pip")
    container = buildah.container(base)
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = buildah("run", "--isolation", "chroot", container, "--", "python3", "-c", asked)
    buildah.remove(container)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [each for extra in EXTRAS for each in project["project"]["optional-dependencies"][extra]]
    wanted += OLDER
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--only-binary", ":all:"]
    run([*pip, "--python-version", version, "--constraint", ROOT / "constraints.txt", "--dest", wheels, *wanted])
    steps.saw(f"{len(list(wheels.iterdir()))} wheels for Python {version}")


def build(buildah: Buildah, wheels: Path, steps: Steps, name: str, extras: str) -> None:
    """The image, under this name."""
    steps.step(f"buildah build, without a network, EXTRAS={extras}")
    source = (ROOT / "src" / "mcp_skills_server" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__(?:: \S+)? = "([^"]+)"', source, re.MULTILINE)
    version = found[1] if found else "dev"
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    revision = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    with suppress(ImageError):
        buildah("rmi", "--force", name)  # or it would stay, without a name
    buildah(
        *("build", "--quiet", "--isolation", "chroot", "--pull-never", "--format", "docker"),
        # Only docker's format keeps a HEALTHCHECK. vfs copies a layer whole, so there are to be few.
        *("--layers=false", "--force-rm", "--network", "host"),
        # /mnt is there in any case: buildah leaves an empty directory behind where it has to make one.
        *("--volume", f"{wheels}:/mnt:ro", "--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/mnt"),
        *("--build-arg", f"VERSION={version}", "--build-arg", f"REVISION={revision.stdout.strip() or 'unknown'}"),
        *("--build-arg", f"EXTRAS={extras}", "--tag", name, "--file", ROOT / "Dockerfile", ROOT),
    )


def look_at(buildah: Buildah, image: str, place: Path, scratch: Path, steps: Steps) -> dict[str, Any]:
    """Check what the image says of itself and what it contains; its configuration."""
    steps.step("what was built")
    inspected = json.loads(buildah("inspect", "--type", "image", image))
    config: dict[str, Any] = inspected["Docker"]["config"]
    for key in ("User", "Entrypoint", "Cmd", "StopSignal", "Volumes", "ExposedPorts"):
        steps.saw(f"{key}: {json.dumps(config.get(key))}")
    steps.saw(f"Healthcheck: {json.dumps(config['Healthcheck']['Test'])}")
    uid = config["User"].partition(":")[0]
    steps.check(uid.isdecimal() and int(uid) > 0, f"the user is a number and not root: {config['User']}")
    steps.check(config["Entrypoint"] == ["/app/bin/mcp-skills-server"], "the entry point is in exec form, no shell")
    steps.check(config["StopSignal"] in {"SIGTERM", "15"}, "it is stopped by SIGTERM")
    steps.check(list(config["Volumes"]) == ["/skills"], "/skills is the volume")
    steps.check(list(config["ExposedPorts"]) == [f"{PORT}/tcp"], f"port {PORT} is exposed")
    labels = {key.rpartition(".")[2]: value for key, value in config["Labels"].items() if ".opencontainers." in key}
    steps.check({"title", "description", "licenses", "version", "revision"} <= set(labels), "it has the OCI labels")
    packages = next((place / "app" / "lib").glob("python3.*")) / "site-packages"
    bare = [each for each in packages.rglob("*.py") if not any(each.parent.glob(f"__pycache__/{each.stem}.*.pyc"))]
    steps.check(not bare, f"each module of the {len(list(packages.glob('*.dist-info')))} packages has its bytecode")
    writable = [
        each
        for each in (place / "app").rglob("*")
        if not each.is_symlink() and (each.stat().st_uid != 0 or each.stat().st_mode & 0o022)
    ]
    steps.check(not writable, "all of /app belongs to root, and nobody else may write there")
    left = [each for each in ("build", "app/bin/pip", "etc/pip.conf") if (place / each).exists()]
    steps.check(not left and not any((place / "mnt").iterdir()), "nothing is left of pip, the wheels and the sources")
    size = weigh(place)
    app = weigh(place / "app")
    steps.saw(f"size: {size / 1e6:.0f} MB, of which /app {app / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory(dir=scratch) as archive:
        buildah("push", "--quiet", image, f"oci:{archive}")
        steps.saw(f"compressed: {weigh(Path(archive)) / 1e6:.0f} MB")
    return config


def weigh(place: Path) -> int:
    """Bytes of all files below."""
    return sum(each.lstat().st_size for each in place.rglob("*") if each.is_file() and not each.is_symlink())


def check_manifests(config: dict[str, Any], steps: Steps) -> None:
    """The files in deploy/ and the page about them must fit the image and the server."""
    steps.step("deploy/ and docs/container.md beside the image")
    known = {f"MCP_SKILLS_{each.name.upper()}" for each in serve.params if each.name}
    for name in ("Dockerfile", "deploy/compose.yaml", "deploy/kubernetes/base/deployment.yaml", "docs/container.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        used = set(re.findall(r"MCP_SKILLS_[A-Z_]*[A-Z]", text))
        steps.check(
            used <= known, f"{name}: its {len(used)} variables are options of serve {used - known or ''}".rstrip()
        )
    user, group = map(int, config["User"].split(":"))
    manifest = ROOT / "deploy" / "kubernetes" / "base" / "deployment.yaml"
    pod = yaml.safe_load(manifest.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    security = pod["securityContext"]
    ids = [security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")]
    steps.check(ids == [user, group, group] and security["runAsNonRoot"], "deployment.yaml: the user of the image")
    (port,) = pod["containers"][0]["ports"]
    steps.check(port["containerPort"] == PORT, f"deployment.yaml: port {PORT}")


# Talking to it


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
                return answer(json.loads(response.read())), session
            for line in response:
                if line.startswith(b"data:") and line[5:].strip():
                    received = json.loads(line[5:])
                    if received.get("id") == message["id"]:
                        return answer(received), session
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
        message, headers = envelope(method, params)
        return self.post(message, **headers)[0]


def envelope(method: str, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
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


def answer(message: dict[str, Any]) -> dict[str, Any]:
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
        reported = answer(json.loads(response.read()))["skills"]
    steps.check(len(reported) == len(expected) + 1, f"/rpc: list_skills has {len(reported)}, one of them its guide")


def open_streams(client: Client) -> dict[str, http.client.HTTPResponse]:
    """A notification stream of each era, left open."""
    client.open()
    streams = {"legacy": client.connection("GET", "/mcp")}
    client.session = None
    message, headers = envelope("subscriptions/listen", {"notifications": {"resourcesListChanged": True}})
    streams["modern"] = client.connection("POST", "/mcp", message, **headers)
    for stream in streams.values():
        if stream.status != 200:
            raise ImageError(f"a stream was not opened: HTTP {stream.status} {stream.read()[:300]!r}")
    for line in streams["modern"]:
        if b"notifications/subscriptions/acknowledged" in line:
            return streams
    raise ImageError("subscriptions/listen was not acknowledged")


# Running it


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


@dataclass(frozen=True)
class Built:
    """A container of the image, its root file system and its configuration."""

    container: str
    place: Path
    config: dict[str, Any]


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


def server_below(pid: int) -> int | None:
    """The process of the server below the one that runs the container."""
    for child in children(pid):
        with suppress(OSError):
            line = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"/app/bin/mcp-skills-server" in line[:2] and os.readlink(f"/proc/{child}/exe").find("/python3") >= 0:
                return child
        found = server_below(child)
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
            pid = pid or server_below(process.pid)
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


def snapshot(place: Path) -> dict[str, tuple[int, ...]]:
    """Every file of a root file system, so that a write shows."""
    out: dict[str, tuple[int, ...]] = {}
    for folder, directories, files in os.walk(place):
        for name in (*directories, *files):
            found = os.lstat(os.path.join(folder, name))
            mark = (found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns, found.st_ino)
            out[os.path.relpath(os.path.join(folder, name), place)] = mark
    return out


def differences(before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]) -> list[str]:
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
    before = snapshot(place)
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
    changed = [each for each in differences(before, snapshot(place)) if each not in {"run", "tmp"}]
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
mount -o remount,ro "$PLACE/dev"
mount -o remount,bind,ro,nosuid,nodev "$PLACE"
if touch "$PLACE/tmp/written" 2> /dev/null; then echo "the root file system can be written to"; exit 97; fi
if [ "$TEMPORARY" ]; then mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$PLACE/tmp"; fi
exec chroot "$PLACE" /usr/bin/setpriv --reuid "${USERS%:*}" --regid "${USERS#*:}" --clear-groups \\
    --no-new-privs --bounding-set=-all --inh-caps=-all -- /usr/bin/env -i "$@"
"""


@contextmanager
def locked(built: Built, scratch: Path, steps: Steps, temporary: bool = False, **more: str) -> Generator[Running]:
    """The image as an orchestrator runs it, with a file of tokens and, where that is asked for, a `/tmp` of its own."""
    place, config = built.place, built.config
    tokens = scratch / "tokens"
    tokens.write_text(f"# for the test\nimage={TOKEN}\n", encoding="utf-8")
    os.chown(tokens, 0, int(config["User"].partition(":")[2]))
    tokens.chmod(0o440)
    (place / "run" / "secrets").mkdir(exist_ok=True)
    (place / "run" / "secrets" / "tokens").touch()
    before = snapshot(place)
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
    changed = differences(before, snapshot(place))
    steps.check(not changed, f"the root file system has not changed ({len(before)} files) {changed or ''}".rstrip())


def run_locked(built: Built, scratch: Path, steps: Steps) -> None:
    """The image as an orchestrator would run it."""
    steps.step("run as process 1: read-only root file system, no capabilities, no new privileges, a token file")
    with locked(built, scratch, steps) as server:
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
def redis(scratch: Path) -> Generator[None]:
    """A Redis of this machine, in the network of the image."""
    command = ["redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "", "--dir", str(scratch)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE)


def run_with_extras(built: Built, scratch: Path, steps: Steps, **more: str) -> None:
    """The second image, as an orchestrator would run it: with Redis, the page, and what more there is to say."""
    said = ", ".join(f"{key}={value}" for key, value in more.items())
    steps.step(f"run as process 1, read-only root file system, a /tmp in memory, Redis, the page, {said}")
    wanted = {"MCP_SKILLS_REDIS": f"redis://127.0.0.1:{REDIS_PORT}/0", "MCP_SKILLS_UI": "true", **more}
    workers = int(more.get("MCP_SKILLS_WORKERS", 0))
    with redis(scratch), locked(built, scratch, steps, temporary=True, **wanted) as server:
        client = Client(token=TOKEN)
        steps.check(len(children(server.pid)) == workers, f"{workers} processes below it")
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


def make(buildah: Buildah, wheels: Path, scratch: Path, steps: Steps, *, image: str = NAME, extras: str = "") -> Built:
    """Build an image, look at it, and make a container of it."""
    build(buildah, wheels, steps, image, extras)
    container = buildah.container(image)
    place = Path(buildah("mount", container))
    config = look_at(buildah, image, place, scratch, steps)
    # Where the image declares a volume, this buildah mounts an empty folder over the one that it is given.
    buildah("config", "--volume", "/skills-", container)
    return Built(container, place, config)


def fail(message: str) -> NoReturn:
    """One line, and the end."""
    print(f"image: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    """Build and try."""
    parser = argparse.ArgumentParser(description="Build the container image and try it out, without a Docker engine.")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument(
        "--cache", type=Path, default=home / "mcp-skills-server" / "image", help="where images are kept"
    )
    parser.add_argument("--fresh", action="store_true", help="make the base image anew")
    parser.add_argument("--install", action="store_true", help="install buildah and debootstrap where they are missing")
    options = parser.parse_args()
    if os.geteuid() != 0:
        fail("must run as root: debootstrap and chroot isolation need it")
    need_tools(options.install)
    base = re.search(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    if base is None:
        fail("the Dockerfile has no line ARG BASE=...")
    steps = Steps()
    options.cache.mkdir(parents=True, exist_ok=True)
    buildah = Buildah(options.cache.resolve())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="mcp-skills-image-") as temporary:
        scratch = Path(temporary)
        try:
            make_base(buildah, base[1], options.fresh, steps)
            wheels = scratch / "wheels"
            fetch_wheels(buildah, base[1], wheels, steps)
            own_network()
            built = make(buildah, wheels, scratch, steps)
            check_manifests(built.config, steps)
            run_by_buildah(built, buildah, scratch, steps)
            run_locked(built, scratch, steps)
            extras = f"[{','.join(EXTRAS)}]"
            built = make(buildah, wheels, scratch, steps, image=f"{NAME}:extras", extras=extras)
            run_with_extras(built, scratch, steps, MCP_SKILLS_WORKERS=str(WORKERS))
            run_with_extras(built, scratch, steps, MCP_SKILLS_METRICS="true")  # which is of one process alone
        except ImageError as failure:
            print(f"\nFAILED: {failure}", flush=True)
            sys.exit(1)
        finally:
            buildah.clean()
    steps.step(f"{NAME} was built and does what it should; it is kept in {options.cache}")


if __name__ == "__main__":
    main()
