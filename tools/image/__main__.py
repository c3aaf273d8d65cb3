"""`make image`: build the container image and test it, on a Debian machine without a Docker engine.

buildah builds with chroot isolation and the vfs driver, which need root, but no daemon and no container runtime. The
base is a small Debian from debootstrap, with the name in the Dockerfile's FROM. The build has no
network: the wheels are fetched here, with this machine's pip, and mounted. Missing programs are installed with apt-get.

Then the image runs twice in a new network namespace, where every port is free and no other host is reachable: once by
buildah, and once as an orchestrator would run it, with a read-only root, no capabilities and as process 1. A second
image, which has the extras for teams, runs the same way with a Redis of this machine.
The base and both images are kept in a cache folder for the next run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final, NoReturn

from tools.image.build import (
    EXTRAS,
    NAME,
    ROOT,
    Buildah,
    ImageError,
    Steps,
    build_image,
    check_manifests,
    fetch_wheels,
    make_base,
    run,
)
from tools.image.run import own_network, run_by_buildah, run_locked, run_with_extras, run_with_git

NEEDED: Final = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "redis-server": "redis-server",
    "unshare": "util-linux",
}


def _install_tools() -> None:
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if not missing:
        return
    # Without Recommends, which would install a container runtime that chroot isolation does not use.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], env=environment)
    run(["apt-get", "install", "--yes", "--no-install-recommends", *missing], env=environment)


def _fail(message: str) -> NoReturn:
    print(f"image: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tools.image", description="Build the container image and try it out, without a Docker engine."
    )
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument(
        "--cache", type=Path, default=home / "mcp-skills-server" / "image", help="where images are kept"
    )
    parser.add_argument("--fresh", action="store_true", help="make the base image anew")
    options = parser.parse_args()
    if os.geteuid() != 0:
        _fail("must run as root: debootstrap and chroot isolation need it")
    _install_tools()
    base = re.search(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    if base is None:
        _fail("the Dockerfile has no line ARG BASE=...")
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
            built = build_image(buildah, wheels, scratch, steps)
            check_manifests(built.config, steps)
            run_by_buildah(built, buildah, steps)
            run_locked(built, scratch, steps)
            run_with_git(built, buildah, scratch, steps)
            extras = f"[{','.join(EXTRAS)}]"
            built = build_image(buildah, wheels, scratch, steps, image=f"{NAME}:extras", extras=extras)
            run_with_extras(built, scratch, steps)
        except (ImageError, AssertionError) as failure:
            print(f"\nFAILED: {failure}", flush=True)
            sys.exit(1)
        finally:
            buildah.clean()
    steps.step(f"{NAME} was built and does what it should; it is kept in {options.cache}")


if __name__ == "__main__":
    main()
