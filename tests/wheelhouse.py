"""Build a folder of wheels of this package and its dependencies, offline, from the installed packages."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(name: str) -> dict[str, Distribution]:
    """Return an installed package and its dependencies on this machine by name, with extras."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(name, "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found[normal(name)] = package = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        for each in map(Requirement, package.requires or ()):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                waiting += [(each.name, more) for more in ("", *each.extras)]
    return found


def size(packages: Iterable[Distribution]) -> int:
    """Return the size of these packages on disk in bytes, without bytecode."""
    files = (Path(str(each.locate_file(file))) for each in packages for file in each.files or ())
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())


def fill(folder: Path, packages: Iterable[Distribution]) -> None:
    """Pack these installed packages into wheels."""
    for package in packages:
        about = package.read_text("WHEEL") or ""
        tags = [line.partition(": ")[2] for line in about.splitlines() if line.startswith("Tag: ")]
        name = f"{package.metadata['Name'].replace('-', '_')}-{package.version}-{tags[0]}.whl"
        with zipfile.ZipFile(folder / name, "w") as wheel:
            inside = [file for file in package.files or () if ".." not in file.parts and file.suffix != ".pyc"]
            for file in inside:
                if file.name not in {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}:
                    wheel.write(str(package.locate_file(file)), file.as_posix())
            (record,) = [file.as_posix() for file in inside if file.name == "RECORD" and len(file.parts) == 2]
            wheel.writestr(record, "".join(f"{each},,\n" for each in [*wheel.namelist(), record]))
