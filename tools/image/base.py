"""The base image: a small Debian with Python, from debootstrap."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from tools.image.buildah import Buildah
from tools.image.steps import Steps, run

SUITE: Final = "bookworm"
PACKAGES: Final = "python3,python3-venv,ca-certificates,git,openssh-client"


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
