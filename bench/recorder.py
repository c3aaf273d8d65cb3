"""This server with a recorder of the modules and ASGI layers through which a request passes.

`python -m bench.recorder FILE ARGUMENT...` starts it. SIGUSR1 begins a record, SIGUSR2 ends it and writes FILE as JSON:
what all records have in common, since work in the background gets into some of them.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from mcp_skills_server import cli

OURS: Final = str(Path(cli.__file__).parent)
_ASGI: Final = ("scope", "receive", "send")


def named(codes: set[CodeType]) -> dict[str, list[str]]:
    """Return our modules and the ASGI applications of these functions."""
    modules = {code.co_filename[len(OURS) + 1 :] for code in codes if code.co_filename.startswith(OURS)}
    layers = {code.co_qualname for code in codes if code.co_name == "__call__" and code.co_varnames[1:4] == _ASGI}
    return {"modules": sorted(modules), "layers": sorted(layers)}


def main(file: Path) -> None:
    """Run the command line of this server with the recorder."""
    codes = set[CodeType]()
    records: list[set[CodeType]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    def begin(*_: object) -> None:
        codes.clear()
        sys.setprofile(note)

    def end(*_: object) -> None:
        sys.setprofile(None)
        records.append(set(codes))
        file.write_text(json.dumps(named(set.intersection(*records))), encoding="utf-8")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    cli.main()


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)))
