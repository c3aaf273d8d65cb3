"""`make interop`: prove the server against independent referees, on fixtures/skills.

Installs pinned referees below `.interop/`, runs each against a real server in both protocol eras over HTTP and stdio,
some at a time, and counts every single check itself: a referee that skips its checks
still says "passed". What is expected not to pass stands in tests/interop/expected-failures.yaml, each with a reason.

Ends with 1 if anything unexpected was seen. Without npm, or where it cannot
install, it says so and ends with 0 (with --required: 1).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from tools.interop.baseline import read_baseline
from tools.interop.installation import PYTHON_PACKAGES, install, install_python, unavailable
from tools.interop.places import HERE
from tools.interop.processes import RefereeError
from tools.interop.report import report
from tools.interop.runs import judged


def main() -> int:
    """Run every referee and print what they say; 1 if something unexpected is in it."""
    parser = argparse.ArgumentParser(
        prog="tools.interop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--required", action="store_true", help="end with 1 if a referee cannot be had")
    parser.add_argument("--install", action="store_true", help="install the referees, and have none of them judge")
    options = parser.parse_args()
    required: bool = options.required
    if reason := unavailable():
        print(f"interop: skipped, {reason}")
        return 1 if required else 0
    begun = time.monotonic()
    baseline = read_baseline(yaml.safe_load((HERE / "expected-failures.yaml").read_text(encoding="utf-8")))
    wanted = tuple(PYTHON_PACKAGES)
    pythons: dict[str, Path] = {}
    with ThreadPoolExecutor(1 + len(wanted)) as pool:
        packages, environments = pool.submit(install), {suite: pool.submit(install_python, suite) for suite in wanted}
    try:
        packages.result()
    except RefereeError as error:
        print(f"interop: skipped, the referees cannot be installed: {error}")
        return 1 if required else 0
    for suite, environment in environments.items():
        try:
            pythons[suite] = environment.result()
        except RefereeError as error:
            print(f"interop: {suite} is left out: {error}")
    installed = time.monotonic() - begun
    if options.install:
        print(f"interop: installed, {installed:.0f} s")
        return 1 if required and len(pythons) < len(wanted) else 0
    try:
        unexpected = report(judged(pythons, baseline))
    except RefereeError as error:
        print(f"interop: {error}")
        return 1
    spent = os.times()
    took = f"{time.monotonic() - begun:.0f} s, of them {installed:.0f} s to install"
    processors = f"{spent.children_user + spent.children_system:.0f} s of processors"
    print(f"interop: {took}; {processors}; {unexpected} unexpected")
    return 1 if unexpected or (required and len(pythons) < len(wanted)) else 0


if __name__ == "__main__":
    sys.exit(main())
