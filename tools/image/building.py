"""The image: its wheels, its build, and a container of it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.image.buildah import Buildah
from tools.image.contents import look_at
from tools.image.settings import ROOT
from tools.image.steps import ImageError, Steps, run

NAME: Final = "localhost/mcp-skills-server"
EXTRAS: Final = ("metrics", "redis")
"""Of the second image."""
OLDER: Final = ("async-timeout",)
"""What an extra needs on the Python of the base, 3.11.2, alone: pip judges that by the Python it runs on."""


@dataclass(frozen=True)
class Built:
    """A container of the image, its root file system and its configuration."""

    container: str
    place: Path
    config: dict[str, Any]


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


def _build(buildah: Buildah, wheels: Path, steps: Steps, name: str, extras: str) -> None:
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


def make(buildah: Buildah, wheels: Path, scratch: Path, steps: Steps, *, image: str = NAME, extras: str = "") -> Built:
    """Build an image, look at it, and make a container of it."""
    _build(buildah, wheels, steps, image, extras)
    container = buildah.container(image)
    place = Path(buildah("mount", container))
    config = look_at(buildah, image, place, scratch, steps)
    # Where the image declares a volume, this buildah mounts an empty folder over the one that it is given.
    buildah("config", "--volume", "/skills-", container)
    return Built(container, place, config)
