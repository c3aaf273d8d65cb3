"""Launcher script that calls a function of a Python file, where a skill's scripts run.

Run it as `python LAUNCHER FILE FUNCTION`; it uses only the standard library. Arguments and result
are JSON files in the work directory. The function's printed output is its log.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import Any

ARGS = "args.json"
RESULT = "result.json"


def main(arguments: list[str]) -> int:
    """Call a function of a file, `arguments`, save its result, and return the exit code."""
    path, name = arguments
    work = os.environ["SKILL_WORKSPACE"]
    sys.path = [os.path.dirname(path), *sys.path]
    sys.argv = [path]
    report: dict[str, Any]
    try:
        with open(os.path.join(work, ARGS), encoding="utf-8") as file:
            args = json.load(file)
        function: Callable[[Any], Any] | None = runpy.run_path(path, run_name="skill").get(name)
        if not callable(function):
            raise LookupError(f"{os.path.basename(path)} has no function {name}")
        report = {"output": function(args)}
        text = json.dumps(report, allow_nan=False)
    except Exception as error:
        traceback.print_exc()
        report = {
            "error": {"type": type(error).__name__, "message": str(error) or type(error).__name__}
        }
        text = json.dumps(report)
    with open(os.path.join(work, RESULT), "w", encoding="utf-8") as file:
        file.write(text)
    return int("error" in report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
