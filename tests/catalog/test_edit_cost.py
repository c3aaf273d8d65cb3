"""An edit costs what one skill costs, however many lie beside it: steps of the interpreter are counted, not time."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from catalog.forest import loaded, plant, skill_md, skills
from mcp_skills_server.catalog.report import report_to_log
from mcp_skills_server.model import Changes, Standing
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.notify import notices
from mcp_skills_server.server.requests import Settings


def steps(work: Callable[[], object]) -> int:
    """How many steps of the interpreter `work` takes in this thread. A copy of a dict is one."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def edited(top: Path, size: int, *, characters: int) -> dict[str, int]:
    """The steps of what follows on an edit of a description, in a root of so many skills."""
    plant(top, skills(*(f"s{number:04}" for number in range(size))))
    registry = loaded(top)
    report_to_log(registry)
    runtime, heard = Runtime(registry), list[Changes]()
    runtime.briefing._characters = characters
    runtime.briefing.tools(handles=True)
    registry.subscribe(heard.append)

    def edit(number: int) -> None:
        plant(top, {"s0003/SKILL.md": skill_md("s0003", f"version: {number}").replace("Tells", f"Edit {number} tells")})

    place = str(top / "s0003" / "SKILL.md")
    edit(1)
    registry.refresh([place])  # what is only done once is done now
    edit(2)
    return {
        "scan": steps(lambda: registry.refresh([place])),
        "notices": steps(lambda: notices(heard[-1], Settings(), tools=False)),
        "texts": steps(lambda: runtime.briefing.tools(handles=True)),
    }


def test_an_edit_among_many_skills_costs_what_one_among_few_does(tmp_path: Path) -> None:
    few = edited(tmp_path / "few", 20, characters=60)
    many = edited(tmp_path / "many", 400, characters=60)
    assert {name: many[name] <= 1.2 * few[name] for name in few} == dict.fromkeys(few, True), (few, many)


def come_and_gone(top: Path, size: int) -> dict[str, int]:
    """The steps of what follows on a skill that comes, and goes, among so many others and as many problems."""
    plant(top, skills(*(f"s{number:04}" for number in range(size))))
    for number in range(size):
        (top / f"link{number:04}").symlink_to(top)
    registry = loaded(top, quiet_s=0)
    assert len(registry.snapshot.problems) == size
    report_to_log(registry)

    def ask() -> None:
        registry.snapshot.paths(Standing.VALID)
        registry.snapshot.named("s0003", Standing.LENIENT)
        registry.snapshot.find(("s0003", "SKILL.md"), Standing.VALID)

    ask()
    out: dict[str, int] = {}
    for number in range(2):  # what is only done once is done the first time
        came = top / f"q{number}"
        plant(top, skills(came.name))
        out["came"] = steps(lambda came=came: (registry.refresh([str(came)]), ask()))
        shutil.rmtree(came)
        out["went"] = steps(lambda came=came: (registry.refresh([str(came)]), ask()))
    return out


def test_a_skill_that_comes_or_goes_among_many_costs_what_one_among_few_does(tmp_path: Path) -> None:
    few, many = come_and_gone(tmp_path / "few", 20), come_and_gone(tmp_path / "many", 400)
    assert {name: many[name] <= 1.2 * few[name] for name in few} == dict.fromkeys(few, True), (few, many)
