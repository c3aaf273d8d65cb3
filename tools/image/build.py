"""Build of the image: buildah with its own storage, the base, the wheels, and checks of the result."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SKILLS: Final = ROOT / "fixtures" / "skills"
PORT: Final = 8000
DEADLINE: Final = 30.0
"""Seconds to wait for an event before the run fails."""


class ImageError(Exception):
    """A check of the image failed."""


class Steps:
    """A printer of steps and checks."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def step(self, text: str) -> None:
        print(f"\n[{time.monotonic() - self._begun:5.1f} s] {text}", flush=True)

    def note(self, text: str) -> None:
        print(f"          {text}", flush=True)

    def check(self, condition: bool, text: str) -> None:
        """Print a check that must hold.

        Raises:
            ImageError: it does not hold.
        """
        if not condition:
            raise ImageError(text)
        self.note(f"ok  {text}")


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
    """buildah with its own storage, and the containers to remove."""

    storage: Path
    containers: list[str] = field(default_factory=list)

    def command(self, *arguments: str | Path) -> list[str]:
        places = ["--root", str(self.storage / "root"), "--runroot", str(self.storage / "run")]
        return ["buildah", *places, "--storage-driver", "vfs", *map(str, arguments)]

    def __call__(self, *arguments: str | Path) -> str:
        return run(self.command(*arguments))

    def container(self, image: str) -> str:
        name = self("from", "--pull-never", image)
        self.containers.append(name)
        return name

    def remove(self, name: str) -> None:
        self("rm", name)
        self.containers.remove(name)

    def clean(self) -> None:
        for name in list(self.containers):
            with suppress(ImageError):
                self.remove(name)


SUITE: Final = "trixie"
PACKAGES: Final = "python3,python3-venv,ca-certificates,git,openssh-client"


def make_base(buildah: Buildah, name: str, fresh: bool, steps: Steps) -> None:
    """Build a small Debian with Python under the name in FROM."""
    steps.step(f"the base image, {name}")
    present = subprocess.run(buildah.command("inspect", "--type", "image", name), capture_output=True, check=False)
    if present.returncode == 0 and not fresh:
        steps.note("kept from the last time (--fresh makes it anew)")
        return
    if present.returncode == 0:
        buildah("rmi", "--force", name)  # otherwise the old image would stay, untagged
    container = buildah.container("scratch")
    place = Path(buildah("mount", container))
    run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, place])
    for dropped in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/locale"):
        for each in (place / dropped).glob("*"):
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    # debootstrap copies files of this machine, which do not belong in an image.
    for copied in ("etc/resolv.conf", "etc/hostname"):
        (place / copied).unlink(missing_ok=True)
    buildah("umount", container)
    buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "--cmd", "python3", container)
    buildah("commit", "--quiet", "--format", "docker", container, name)
    buildah.remove(container)
    steps.note(f"made by debootstrap: Debian {SUITE}, {PACKAGES}")


def check_image(buildah: Buildah, image: str, place: Path, scratch: Path, steps: Steps) -> dict[str, Any]:
    """Check the metadata and content of the image, and return its configuration."""
    steps.step("what was built")
    inspected = json.loads(buildah("inspect", "--type", "image", image))
    config: dict[str, Any] = inspected["Docker"]["config"]
    for key in ("User", "Entrypoint", "Cmd", "StopSignal", "Volumes", "ExposedPorts"):
        steps.note(f"{key}: {json.dumps(config.get(key))}")
    steps.note(f"Healthcheck: {json.dumps(config['Healthcheck']['Test'])}")
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
    size = _size_of(place)
    app = _size_of(place / "app")
    steps.note(f"size: {size / 1e6:.0f} MB, of which /app {app / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory(dir=scratch) as archive:
        buildah("push", "--quiet", image, f"oci:{archive}")
        steps.note(f"compressed: {_size_of(Path(archive)) / 1e6:.0f} MB")
    return config


def _size_of(place: Path) -> int:
    return sum(each.lstat().st_size for each in place.rglob("*") if each.is_file() and not each.is_symlink())


def check_manifests(config: dict[str, Any], steps: Steps) -> None:
    """Check that the files in deploy/ match the image."""
    steps.step("deploy/ beside the image")
    user, group = map(int, config["User"].split(":"))
    manifest = ROOT / "deploy" / "kubernetes" / "base" / "deployment.yaml"
    pod = yaml.safe_load(manifest.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    security = pod["securityContext"]
    ids = [security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")]
    steps.check(ids == [user, group, group] and security["runAsNonRoot"], "deployment.yaml: the user of the image")
    (port,) = pod["containers"][0]["ports"]
    steps.check(port["containerPort"] == PORT, f"deployment.yaml: port {PORT}")


NAME: Final = "localhost/mcp-skills-server"
EXTRAS: Final = ("metrics", "redis")
"""The extras of the second image."""
OLDER: Final = ("async-timeout",)
"""Dependencies of an extra only on the base's Python 3.11.2: pip evaluates markers for its own Python."""


@dataclass(frozen=True)
class Built:
    """A container of the image, with its root file system and configuration."""

    container: str
    place: Path
    config: dict[str, Any]


def fetch_wheels(buildah: Buildah, base: str, wheels: Path, steps: Steps) -> None:
    """Fetch everything that the build installs, as wheels for the base's Python."""
    steps.step("the wheels, with this machine's pip")
    container = buildah.container(base)
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = buildah("run", "--isolation", "chroot", container, "--", "python3", "-c", code)
    buildah.remove(container)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [each for extra in EXTRAS for each in project["project"]["optional-dependencies"][extra]]
    wanted += OLDER
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--only-binary", ":all:"]
    run([*pip, "--python-version", version, "--constraint", ROOT / "constraints.txt", "--dest", wheels, *wanted])
    steps.note(f"{len(list(wheels.iterdir()))} wheels for Python {version}")


def _build(buildah: Buildah, wheels: Path, steps: Steps, name: str, extras: str) -> None:
    steps.step(f"buildah build, without a network, EXTRAS={extras}")
    source = (ROOT / "src" / "mcp_skills_server" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__(?:: \S+)? = "([^"]+)"', source, re.MULTILINE)
    version = found[1] if found else "dev"
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    revision = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    with suppress(ImageError):
        buildah("rmi", "--force", name)  # otherwise the old image would stay, untagged
    buildah(
        *("build", "--quiet", "--isolation", "chroot", "--pull-never", "--format", "docker"),
        # Only docker's format keeps a HEALTHCHECK. vfs copies whole layers, so use few.
        *("--layers=false", "--force-rm", "--network", "host"),
        # /mnt exists anyway; elsewhere buildah would leave an empty directory behind.
        *("--volume", f"{wheels}:/mnt:ro", "--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/mnt"),
        *("--build-arg", f"VERSION={version}", "--build-arg", f"REVISION={revision.stdout.strip() or 'unknown'}"),
        *("--build-arg", f"EXTRAS={extras}", "--tag", name, "--file", ROOT / "Dockerfile", ROOT),
    )


def build_image(
    buildah: Buildah, wheels: Path, scratch: Path, steps: Steps, *, image: str = NAME, extras: str = ""
) -> Built:
    _build(buildah, wheels, steps, image, extras)
    container = buildah.container(image)
    place = Path(buildah("mount", container))
    config = check_image(buildah, image, place, scratch, steps)
    # If the image declares a volume, this buildah mounts an empty folder over the given one.
    buildah("config", "--volume", "/skills-", container)
    return Built(container, place, config)
