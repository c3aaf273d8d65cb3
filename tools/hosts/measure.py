"""One host: installed entry, scripted conversations, and what came of them."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.hosts import facts, setting
from tools.hosts.facts import Result, Run
from tools.hosts.model import SEARCH_AGAIN, Script, Step, serving
from tools.hosts.setting import Program, Trace

READY: Final = 30.0
"""Seconds that the model gives the server to list its tools, on a busy machine."""
NOTICED: Final = 20.0
RELISTED: Final = 5.0


@dataclass(frozen=True)
class Plan:
    """A conversation to have: which steps, over which root, with which more arguments of the host."""

    steps: Callable[[Path, Trace], list[Step]] = lambda _root, _trace: []
    many: bool = True
    more: Sequence[str] = ()
    approved: bool = True
    slash: bool = False


@dataclass(frozen=True)
class Place:
    """Where things are: the repository, the host's programs, and whether the network is ours alone."""

    root: Path
    host: str
    programs: Path
    path: Sequence[Path]
    namespaced: bool


def measure(place: Place, program: Program, scratch: Path) -> Result:
    """Every conversation with one host."""
    binary = place.programs / "node_modules" / ".bin" / program.binary
    version = json.loads(
        (place.programs / "node_modules" / program.package / "package.json").read_text(encoding="utf-8")
    )["version"]
    result = Result(version)

    def converse(label: str, plan: Plan) -> Run | None:
        folder = scratch / label
        folder.mkdir()
        run = _converse(place, program, binary, folder, plan)
        lost = run.lost() or "; ".join(run.faults)
        if not lost and plan.approved and run.ended.code != 0:
            lost = f"the host {run.ended.reason()}"
        if lost:
            result.failures.append(f"{label}: {lost}")
        return None if run.lost() else run

    few = converse("17 skills", Plan(many=False))
    many = converse("148 skills", Plan(_every_step))
    if many is not None:
        facts.judge_era(result, many)
    if few is not None:
        facts.judge_catalogue(result, "17 skills", few)
    if many is not None:
        facts.judge_catalogue(result, "148 skills", many)
        facts.judge_calls(result, many)
    if program.relist:
        seen = converse("relisting", Plan(lambda root, trace: [_added(root, trace), *_AGAIN], more=program.relist))
        if seen is not None:
            result.facts[f"the same with `{' '.join(program.relist)}`"] = facts.change(seen)
    if program.slash is not None:
        seen = converse("slash command", Plan(many=False, slash=True))
        if seen is not None and not seen.faults:
            result.facts["a slash command of a hostile skill"] = "ran nothing, read no file"
    if program.approval or program.install:
        asked = converse("not approved", Plan(lambda _root, _trace: [_load(setting.LONG[0])], approved=False))
        if asked is not None:
            words = program.approval or (f"install {place.host} {' '.join(program.install)}",)
            result.facts["approval"] = f"without `{' '.join(words)}`: {facts.refusal(asked)}"
    else:
        result.facts["approval"] = "none asked for"
    return result


def _converse(place: Place, program: Program, binary: Path, folder: Path, plan: Plan) -> Run:
    home, project, root = folder / "home", folder / "project", folder / "skills"
    home.mkdir()
    project.mkdir()
    names = setting.build(root) if plan.many else setting.copy_fixtures(place.root / "fixtures" / "skills", root)
    trace = Trace(folder / "trace")
    tee = trace.write_program([sys.executable, "-m", "mcp_skills_server"])
    script = Script(deque(plan.steps(root, trace)), lambda: trace.wait(lambda: bool(trace.tools()), READY))
    with serving(script.decide) as model:
        env = setting.environment(home, place.path, program.environment(model.url), namespaced=place.namespaced)
        program.prepare(home, model.url)
        ours_install = program.install if plan.approved else ()
        install = [
            sys.executable,
            "-m",
            "mcp_skills_server",
            "install",
            place.host,
            root,
            "--command",
            tee,
            *ours_install,
        ]
        done = setting.run(install, env, project)
        if done.code != 0:
            return Run(names, script, trace, done, 0, [f"install {done.reason()}"])
        if plan.slash and program.slash is not None:
            setting.hostile(root, project)
            ended = setting.run([binary, *program.slash(setting.HOSTILE)], env, project)
            faults = [*model.faults]
            if (project / setting.HIT).exists():
                faults.append("a slash command ran a command of the skill's text")
            seen = json.dumps([each.body for each in model.requests])
            if setting.PRIVATE in seen:
                faults.append("a slash command sent a file of the user's to the model")
            if setting.HOSTILE not in seen:
                faults.append("the slash command did not reach the model")
            return Run(names, script, trace, ended, len(model.requests), faults)
        command = [binary, *program.command, *(program.approval if plan.approved else ()), *plan.more]
        ended = setting.run(command, env, project)
        return Run(names, script, trace, ended, len(model.requests), model.faults)


def _load(length: int) -> Step:
    return Step(f"load {length}", "skills_load", {"names": [setting.long_name(length)]})


def _added(root: Path, trace: Trace) -> Step:
    def add() -> None:
        notices, listed = trace.notices(), trace.count("tools/list")
        setting.write(root, setting.ADDED, "# Count\n\nCount them.\n")
        if trace.wait(lambda: trace.notices() > notices, NOTICED):
            trace.wait(lambda: trace.count("tools/list") > listed, RELISTED)

    return Step("added", "skills_search", {"query": setting.ADDED.replace("-", " ")}, before=add)


_AGAIN: Final = (
    Step("later", "skills_search", {"query": "audit every invoice"}),
    Step("", SEARCH_AGAIN, {}),
    Step("again", "skills_search", {"query": "audit every invoice"}),
)
"""More calls, because what a host shows of a change comes with a request after it, or after another search."""


_PROPOSED: Final = {"SKILL.md": "---\nname: count-twice\ndescription: Use this to count things again.\n---\n\nTwice.\n"}


def _every_step(root: Path, trace: Trace) -> list[Step]:
    name = "audit-invoice"
    return [
        Step("search", "skills_search", {"query": "audit every invoice"}),
        Step("load", "skills_load", {"names": [name]}),
        Step("read", "skills_read", {"skill": name, "path": setting.FILE}),
        *map(_load, setting.LONG),
        _added(root, trace),
        *_AGAIN,
        Step("propose", "skills_propose", {"name": "count-twice", "files": _PROPOSED, "reason": "Counted wrongly."}),
    ]
