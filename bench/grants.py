"""Measure what a principal with grants of its own costs: `python -m bench.grants [--skills N] [--principals N]`.

In one process: memory, the first search of each principal, and the processor time of a request while a skill is edited
before each one. Principals read all skills by a grant of `**`, or all but one, which is a set of skills of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.generate import generate, skill_name
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.requests import Caller, Settings

QUERY = "refund policy of an invoice"


def resident() -> float:
    """Return the resident memory of this process in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def own_grants(kind: str, number: int) -> list[Grant]:
    """Return the grants of a principal's own group: all skills and some of its own, or all but one digit of names."""
    who = (f"group:g{number}",)
    if kind == "**":
        return [Grant(who, (Pattern("**"), Pattern(f"team-{number}/**")))]
    digits = "0123456789"
    last, tens = digits[number % 10], digits[number // 10 % 10]
    most = [Pattern(f"*{digit}") for digit in digits if digit != last]
    return [Grant(who, (*most, Pattern(f"*{tens}{last}"), Pattern(f"own-{number}")))]


async def measure(root: Path, kind: str, principals: int) -> None:
    registry = Registry([root])
    registry.load()
    grants = [grant for number in range(principals) for grant in own_grants(kind, number)]
    attachment = Attachment(
        registry, Settings(), None, Runtime(registry), views=Views(registry, Grants(grants, local=False))
    )
    callers = [
        Caller({}, served=_none, principal=Principal("token", f"t{number}", groups=frozenset({f"g{number}"})))
        for number in range(principals)
    ]
    async with attachment.running():
        await attachment.call("tools/call", callers[0], {"name": "skills_search", "arguments": {"query": QUERY}})
        before = resident()
        searches = [await _timed(attachment, caller, time.perf_counter) for caller in callers]
        growth = resident() - before
        edited = root / skill_name(0) / "SKILL.md"
        text, costs = edited.read_text(), list[float]()
        for number, caller in enumerate(callers[:100]):
            edited.write_text(text.replace("Read [the rules]", f"Edit {number}. Read [the rules]"))
            registry.refresh([str(edited)])
            began = time.process_time()
            await attachment.call("skills/list", caller, {})
            costs.append(time.process_time() - began)
        edited.write_text(text)
    print(
        f"{len(registry.snapshot.skills):,} skills, {principals} principals that read {kind!r}: "
        f"+{growth:.0f} MB, first search {statistics.median(searches) * 1000:.1f} ms (slowest "
        f"{max(searches) * 1000:.0f}), list after an edit {statistics.median(costs) * 1000:.2f} ms of processor"
    )


async def _none(_: object) -> None:
    raise AssertionError


async def _timed(attachment: Attachment, caller: Caller, clock: Callable[[], float]) -> float:
    began = clock()
    await attachment.call("tools/call", caller, {"name": "skills_search", "arguments": {"query": QUERY}})
    return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skills", type=int, default=1_000)
    parser.add_argument("--principals", type=int, default=420)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), given.skills)
        for kind in ("**", "all but some"):
            asyncio.run(measure(Path(folder), kind, given.principals))


if __name__ == "__main__":
    main()
