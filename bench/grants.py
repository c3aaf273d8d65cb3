"""What grants cost: pages, searches and memory of 1,000 sets of grants over 10,000 skills, beside a server without any.

`python -m bench.grants`. All in one process, without a transport, so that nothing hides the difference: a request is
what the dispatcher makes of it, and the floor is the same request where no grant is in force. The last rows show that
what is forbidden takes as long as what is absent. Times are CPU time.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

import anyio

from bench.generate import generate, skill_name
from bench.report import Row, Run
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import Dispatcher, Request
from mcp_skills_server.server.eras import MODERN
from mcp_skills_server.server.requests import Settings

_TEAM: Final = 10
"""Skills of one team."""
_NOBODY: Final = range(400, 500)
"""Teams that there might be and that have no folder."""
_ENVELOPE: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
_HALF: Final = tuple(f"team-{digit}" for digit in ("5", "6", "7", "8", "9", "10"))
"""What the names of most teams begin with."""
_ROUNDS: Final = 15
_US, _MB = 1e6, 1e6


class Client:
    """A client, as its peer."""

    def __init__(self, principal: Principal | None) -> None:
        self.principal = principal
        self.connection = self

    def at_end(self, work: Callable[[], object]) -> None:
        """The client never leaves."""

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Nothing is sent before an answer."""


async def ask(dispatcher: Dispatcher, method: str, **params: Any) -> bytes:
    """The answer to a request, its error too."""
    return await dispatcher.answer(Request(1, method, {**params, "_meta": _ENVELOPE}, MODERN))


def team(number: int) -> str:
    """The folder of a team."""
    return f"team-{number:03d}"


def serve(registry: Registry, views: Views) -> Attachment:
    """A server that is ready."""
    attachment = Attachment(registry, Settings(), None, Runtime(registry), views=views)
    attachment._open()
    return attachment


def resident() -> int:
    """Bytes of memory that the process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def took(attachment: Attachment, clients: Sequence[Client], method: str, **params: Any) -> float:
    """Seconds of CPU for one request, made by each of these."""
    dispatchers = [Dispatcher(attachment, each) for each in clients]
    began = process_time()
    for each in dispatchers:
        await ask(each, method, **params)
    return (process_time() - began) / len(clients)


async def measure(registry: Registry, sets: int, wide: int) -> list[Row]:
    """The rows of sets that have one team and `wide` more each."""
    rows: list[Row] = []
    size, dice = len(registry.snapshot.skills), random.Random(1)
    teams = size // _TEAM
    shared = [Pattern(f"{team(each)}/**") for each in range(wide)]
    own = [(team(number % 200), team(200 + number // 200)) for number in range(sets)]
    grants = [
        Grant((f"token:{number}",), (*shared, *(Pattern(f"{each}/**") for each in own[number])))
        for number in range(sets)
    ]
    clients = [Client(Principal("token", str(number))) for number in range(sets)]
    plain = serve(registry, Views(registry))
    nobody = Client(None)
    for method in ("skills/list", "tools/list"):
        await ask(Dispatcher(plain, nobody), method)
    before = resident()
    views = Views(registry, Grants(grants, local=False))
    granted = serve(registry, views)
    first = await took(granted, clients, "skills/list")
    what = f"{sets:,} sets of {len(views.of(clients[0].principal).snapshot.skills):,}"
    rows.append(Row(f"{what}: memory after a page each", size, sets, (resident() - before) / _MB, None, "MB", most=100))
    rows.append(Row(f"{what}: first page of a set", size, sets, first * _US, None, "us"))
    for name, method, params in (
        ("page", "skills/list", dict[str, Any]()),
        ("read", "resources/read", {"uri": f"skill://{team(0)}/{skill_name(1)}/SKILL.md"}),
    ):
        ours: list[float] = []
        floor: list[float] = []
        for _ in range(_ROUNDS):
            ours.append(await took(granted, dice.sample(clients, sets), method, **params))
            floor.append(await took(plain, [nobody] * sets, method, **params))
        best = min(ours) * _US, min(floor) * _US
        rows.append(Row(f"{what}: {name}", size, sets * _ROUNDS, *best, "us", most_ratio=1.2))
    edited = Path(registry.roots[0].path) / team(0) / skill_name(1) / "SKILL.md"
    edited.write_text(edited.read_text(encoding="utf-8") + "One more line.\n", encoding="utf-8")
    began = process_time()
    registry.refresh([str(edited)])
    rows.append(Row(f"{what}: an edit, until all can hear of it", size, 1, (process_time() - began) * 1e3, None, "ms"))
    again = await took(granted, clients, "skills/list")
    rows.append(Row(f"{what}: page after that edit", size, sets, again * _US, None, "us"))
    for client in clients:
        await ask(Dispatcher(granted, client), "tools/list")
    rows.append(Row(f"{what}: memory with tools too", size, sets, (resident() - before) / _MB, None, "MB"))
    some = clients[:20]
    for client in some:
        await ask(Dispatcher(granted, client), "tools/call", name="skills_search", arguments={"query": "refund policy"})
    rows.append(Row(f"{what}: memory with {len(some)} searches", size, sets, (resident() - before) / _MB, None, "MB"))
    rows += await hidden(granted, clients[-1], teams)
    return rows


async def measure_wide(registry: Registry, sets: int, distinct: int) -> list[Row]:
    """The rows of sets that have more than half of all skills each: so many sets, of which so many differ."""
    size = len(registry.snapshot.skills)
    shared = tuple(Pattern(f"{beginning}*/**") for beginning in _HALF)
    grants = [Grant((f"token:{each}",), (*shared, Pattern(f"{team(each % distinct)}/**"))) for each in range(sets)]
    clients = [Client(Principal("token", str(number))) for number in range(sets)]
    plain, nobody = serve(registry, Views(registry)), Client(None)
    await ask(Dispatcher(plain, nobody), "skills/list")
    before = resident()
    views = Views(registry, Grants(grants, local=False))
    granted = serve(registry, views)
    first = await took(granted, clients, "skills/list")
    what = f"{sets:,} sets of {len(views.of(clients[0].principal).snapshot.skills):,}, {distinct:,} of them distinct"
    dice = random.Random(1)
    ours = await took(granted, dice.sample(clients, sets), "skills/list") * _US
    floor = await took(plain, [nobody] * sets, "skills/list") * _US
    return [
        Row(f"{what}: memory after two pages each", size, sets, (resident() - before) / _MB, None, "MB", most=100),
        Row(f"{what}: first page of a set", size, sets, first * _US, None, "us"),
        Row(f"{what}: page", size, sets, ours, floor, "us", most_ratio=1.2),
    ]


async def hidden(granted: Dispatcher, client: Client, teams: int) -> list[Row]:
    """How long it takes to be refused what is there, beside what is nowhere."""
    rows: list[Row] = []
    there = [f"{team(number)}/{skill_name(2)}" for number in range(_NOBODY.start - 100, _NOBODY.start)]
    absent = [f"{team(number)}/{skill_name(2)}" for number in _NOBODY]
    asked: Sequence[tuple[str, Callable[[str], dict[str, Any]]]] = (
        ("resources/read", lambda path: {"uri": f"skill://{path}/SKILL.md"}),
        ("skills/get", lambda path: {"uri": f"skill://{path}/SKILL.md"}),
        ("prompts/get", lambda path: {"name": path}),
        ("tools/call", lambda path: {"name": "skills_load", "arguments": {"names": [path]}}),
    )
    for method, params in asked:
        times: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(20 if method != "tools/call" else 4):
            for number in range(len(there)):
                for exists in (True, False) if (turn + number) % 2 else (False, True):
                    given = params((there if exists else absent)[number])
                    began = perf_counter()
                    await ask(Dispatcher(granted, client), method, **given)
                    times[exists].append(perf_counter() - began)
        rows.append(
            Row(
                f"{method}: forbidden beside absent",
                teams * _TEAM,
                len(times[True]),
                median(times[True]) * _US,
                median(times[False]) * _US,
                "us",
            )
        )
    return rows


def main() -> int:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.grants", description=__doc__)
    parser.add_argument("--sets", type=int, default=1000, help="sets of grants")
    parser.add_argument("--skills", type=int, default=10_000)
    parser.add_argument("--wide", default="10,100", help="teams of 10 skills that everybody has beside one's own")
    parser.add_argument(
        "--wide-sets", default="1000:50,200:200", help="SETS:DISTINCT of sets that have more than half of all skills"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args()
    run = Run()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch:
        for number in range(options.skills // _TEAM):
            generate(Path(scratch) / team(number if number < _NOBODY.start else number + len(_NOBODY)), _TEAM)
        for wide in map(int, filter(None, options.wide.split(","))):
            registry = Registry([scratch])
            registry.load()
            rows += anyio.run(measure, registry, options.sets, wide)
            registry.close()
        for each in options.wide_sets.split(",") if options.wide_sets else ():
            sets, distinct = map(int, each.split(":"))
            registry = Registry([scratch])
            registry.load()
            rows += anyio.run(measure_wide, registry, sets, distinct)
            registry.close()
    run.tell(
        rows,
        f"CPU time, the best of {_ROUNDS} rounds for page and read; medians of wall time for hidden skills",
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
