"""One host: installed entry, scripted conversations, and what came of them."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.hosts import reading, roots, sandbox
from tools.hosts.apis import Seen
from tools.hosts.model import serving
from tools.hosts.programs import Program
from tools.hosts.script import FREE, SEARCH_AGAIN, Script, Step, ours
from tools.hosts.trace import Trace

READY: Final = 30.0
"""Seconds that the model gives the server to list its tools, on a busy machine."""
NOTICED: Final = 20.0
RELISTED: Final = 5.0


@dataclass
class Run:
    """A conversation and what is left of it."""

    names: Sequence[str]
    script: Script
    trace: Trace
    ended: sandbox.Ended
    requests: int
    faults: Sequence[str]

    def lost(self) -> str:
        """Why there is nothing to measure, empty when there is."""
        if not self.trace.instructions() and not self.trace.tools():
            asked = "the server answered nothing" if self.trace.asked() else "the server was not asked"
            last = self.trace.log().strip().splitlines()[-1:]
            said = f" (it said {last[0]!r})" if last else ""
            return f"the entry was not accepted: {asked}{said}; the host {self.ended.reason()}"
        if self.script.first is None:
            return f"no request reached the model; the host {self.ended.reason()}"
        return ""


@dataclass
class Result:
    """What is known of one host. `facts` are the rows of the table, `failures` what an assertion of ours said."""

    version: str
    facts: dict[str, str] = field(default_factory=dict[str, str])
    failures: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Plan:
    """A conversation to have: which steps, over which root, with which more arguments of the host."""

    steps: Callable[[Path, Trace], list[Step]] = lambda _root, _trace: []
    many: bool = True
    more: Sequence[str] = ()
    approved: bool = True


@dataclass(frozen=True)
class Place:
    """Where things are: the repository, the host's programs, and whether the network is ours alone."""

    root: Path
    host: str
    programs: Path
    path: Sequence[Path]
    namespaced: bool


def measure(place: Place, program: Program, keep: Path | None) -> Result:
    """Every conversation with one host."""
    binary = place.programs / "node_modules" / ".bin" / program.binary
    version = json.loads(
        (place.programs / "node_modules" / program.package / "package.json").read_text(encoding="utf-8")
    )["version"]
    result = Result(version)

    def converse(label: str, plan: Plan) -> Run | None:
        with tempfile.TemporaryDirectory(prefix="hosts-", ignore_cleanup_errors=True) as folder:
            run = _converse(place, program, binary, Path(folder), plan)
            if keep is not None:
                _keep(Path(folder), keep / place.host / label)
            lost = run.lost() or ("; ".join(run.faults))
            if not lost and plan.approved and run.ended.code != 0:
                lost = f"the host {run.ended.reason()}"
            if lost:
                result.failures.append(f"{label}: {lost}")
            return None if run.lost() else _frozen(run)

    few = converse("17 skills", Plan(many=False))
    many = converse("148 skills", Plan(_every_step))
    if many is not None:
        _era(result, many)
    if few is not None:
        judge_catalogue(result, "17 skills", few)
    if many is not None:
        judge_catalogue(result, "148 skills", many)
        judge_calls(result, many)
    if program.relist:
        told = converse("relisting", Plan(lambda root, trace: [_added(root, trace), *_AGAIN], more=program.relist))
        if told is not None:
            result.facts[f"the same with `{' '.join(program.relist)}`"] = _change(told)
    if program.approval or program.install:
        asked = converse("not approved", Plan(lambda _root, _trace: [_load(roots.LONG[0])], approved=False))
        if asked is not None:
            words = program.approval or (f"install {place.host} {' '.join(program.install)}",)
            result.facts["approval"] = f"without `{' '.join(words)}`: {_refusal(asked)}"
    else:
        result.facts["approval"] = "none asked for"
    return result


def _converse(
    place: Place,
    program: Program,
    binary: Path,
    folder: Path,
    plan: Plan,
) -> Run:
    home, project, root = folder / "home", folder / "project", folder / "skills"
    home.mkdir()
    project.mkdir()
    names = roots.build(root) if plan.many else roots.copy_fixtures(place.root / "fixtures" / "skills", root)
    trace = Trace(folder / "trace")
    tee = trace.write_program([sys.executable, "-m", "mcp_skills_server"])
    script = Script(deque(plan.steps(root, trace)), lambda: trace.wait(lambda: bool(trace.tools()), READY))
    with serving(script.decide) as model:
        env = sandbox.environment(home, place.path, program.environment(model.url), namespaced=place.namespaced)
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
        done = sandbox.run(install, env, project)
        if done.code != 0:
            return Run(names, script, trace, done, 0, [f"install {done.reason()}"])
        command = [binary, *program.command, *(program.approval if plan.approved else ()), *plan.more]
        ended = sandbox.run(command, env, project)
        (folder / "requests.json").write_text(
            json.dumps([{"path": each.path, "body": each.body} for each in model.requests], indent=1), encoding="utf-8"
        )
        (folder / "ended.txt").write_text(f"{ended.code}\n{ended.out}\n{ended.err}", encoding="utf-8")
        return Run(names, script, trace, ended, len(model.requests), model.faults)


def _keep(folder: Path, there: Path) -> None:
    shutil.rmtree(there, ignore_errors=True)
    there.mkdir(parents=True)
    for name in ("requests.json", "ended.txt"):
        if (folder / name).exists():
            shutil.copy(folder / name, there / name)
    shutil.copytree(folder / "trace", there / "trace")


@dataclass(frozen=True)
class _Frozen(Trace):
    """A trace that was read, because its files go."""

    messages_in: Sequence[dict[str, Any]] = ()
    messages_out: Sequence[dict[str, Any]] = ()

    def asked(self) -> list[dict[str, Any]]:
        return list(self.messages_in)

    def said(self) -> list[dict[str, Any]]:
        return list(self.messages_out)


def _frozen(run: Run) -> Run:
    trace = _Frozen(run.trace.folder, run.trace.asked(), run.trace.said())
    return Run(run.names, run.script, trace, run.ended, run.requests, run.faults)


def _load(length: int) -> Step:
    return Step(f"load {length}", "skills_load", {"names": [roots.long_name(length)]})


def _added(root: Path, trace: Trace) -> Step:
    def add() -> None:
        notices, listed = trace.notices(), trace.count("tools/list")
        roots.write(root, roots.ADDED, "# Count\n\nCount them.\n")
        if trace.wait(lambda: trace.notices() > notices, NOTICED):
            trace.wait(lambda: trace.count("tools/list") > listed, RELISTED)

    return Step("added", "skills_search", {"query": roots.ADDED.replace("-", " ")}, before=add)


_AGAIN: Final = (
    Step("later", "skills_search", {"query": "audit every invoice"}),
    Step("", SEARCH_AGAIN, {}),
    Step("again", "skills_search", {"query": "audit every invoice"}),
)
"""More calls, because what a host shows of a change comes with a request after it, or after another search."""


def _every_step(root: Path, trace: Trace) -> list[Step]:
    name = "audit-invoice"
    return [
        Step("search", "skills_search", {"query": "audit every invoice"}),
        Step("load", "skills_load", {"names": [name]}),
        Step("read", "skills_read", {"skill": name, "path": roots.FILE}),
        *map(_load, roots.LONG),
        _added(root, trace),
        *_AGAIN,
    ]


def _era(result: Result, run: Run) -> None:
    first = run.trace.asked()[0]
    params = first.get("params", {})
    meta = params.get("_meta", {})
    version = params.get("protocolVersion") or meta.get("io.modelcontextprotocol/protocolVersion", "unknown")
    able = params.get("capabilities") or meta.get("io.modelcontextprotocol/clientCapabilities", {})
    declared = ", ".join(sorted(able)) or "nothing"
    result.facts["era"] = f"`{first.get('method')}` {version}; declares {declared}"
    counts = {name: run.trace.count(name) for name in ("prompts/list", "resources/list", "skills/list")}
    result.facts["prompts"] = (
        f"asked {counts['prompts/list']} times, got {run.trace.prompts()} of {len(run.names)}"
        if counts["prompts/list"]
        else "not asked for"
    )
    also = [name for name in ("resources/list", "skills/list") if counts[name]]
    result.facts["also asks for"] = ", ".join(f"`{name}`" for name in also) or "nothing"
    if not run.trace.tools():
        result.failures.append("the server's tools were never listed")


def judge_catalogue(result: Result, label: str, run: Run) -> None:
    """What arrives of the instructions and of the description of skills_load."""
    script, trace = run.script, run.trace
    first, equipped = script.first, script.equipped
    if first is None:
        return
    if equipped is None:
        result.failures.append(f"{label}: our tools were never offered; the host {run.ended.reason()}")
        return
    result.facts["tools"] = _deferred(script, first)
    last = script.after[next(reversed(script.after))] if script.after else equipped
    said: list[tuple[str, str]] = []
    for when, shown in (("", first), ("while deferred ", script.deferred), ("later ", last)):
        part = _part(trace.instructions(), shown.text, run.names) if shown is not None else ""
        if part and (not said or said[-1][1] != part):
            said.append((when, part))
    result.facts[f"instructions, {label}"] = " · ".join(when + part for when, part in said)
    tool = ours(equipped.tools)["skills_load"]
    result.facts[f"description of skills_load, {label}"] = _part(
        [tools["skills_load"] for tools in trace.tools() if tools], tool.description, run.names
    )


def _part(versions: Sequence[str], shown: str, names: Sequence[str]) -> str:
    """How much of a text arrived; of several versions that the server sent, the one that fits best."""
    if not versions:
        return "none sent"
    sent = max(versions, key=lambda version: len(reading.arrived(version, shown)))
    there, whole = reading.arrived(sent, shown), reading.arrived(sent, sent)
    if len(there) < 40:
        return f"none of {len(whole)} characters"
    seen, held = reading.names_in(there, names), reading.names_in(whole, names)
    said = f"whole, {len(whole)} characters" if there == whole else f"{len(there)} of {len(whole)} characters"
    return f"{said}; {seen} of {len(names)} names" + (f", {held} were sent" if seen < held else "")


def _deferred(script: Script, first: Seen) -> str:
    if script.found is not None:
        return f"deferred; the search {FREE!r} brings {script.found} of them"
    return "in the first request" if ours(first.tools) else "later than the first request"


def judge_calls(result: Result, run: Run) -> None:
    answers = run.script.answers
    checks = {
        "search": ("audit-invoice" in answers.get("search", ""), "skills_search found nothing"),
        "load": ("# audit-invoice" in answers.get("load", ""), "skills_load brought no instructions"),
        "read": (roots.MARK in answers.get("read", ""), "skills_read brought no file"),
    }
    for label, (good, complaint) in checks.items():
        result.facts[{"search": "skills_search", "load": "skills_load", "read": "skills_read"}[label]] = (
            "works" if good else "**fails**"
        )
        if not good:
            said = answers.get(label)
            result.failures.append(f"{complaint}: {said[:200]!r}" if said is not None else f"{complaint}: no answer")
    result.facts["a result comes as"] = reading.form(answers.get("load", ""))
    for length in roots.LONG:
        whole = reading.lines_in(roots.long_body(length))
        seen = reading.lines_in(answers.get(f"load {length}", ""))
        sent = reading.lines_in(_sent(run.trace, roots.long_name(length)))
        result.facts[f"a body of {length:,} characters"] = _lines(whole, sent, seen)
        if length == roots.LONG[0] and seen != whole:
            result.failures.append(f"a body of {length} characters did not arrive whole")
    result.facts["a skill added while it runs"] = _change(run)


def _sent(trace: Trace, name: str) -> str:
    """What the server sent for a load of this skill."""
    for call in trace.asked():
        params = call.get("params", {})
        if call.get("method") == "tools/call" and params.get("arguments", {}).get("names") == [name]:
            for answer in trace.said():
                if answer.get("id") == call.get("id") and "result" in answer:
                    return json.dumps(answer["result"])
    return ""


def _lines(whole: Sequence[int], sent: Sequence[int], seen: Sequence[int]) -> str:
    if not seen:
        return "none of it"
    if list(seen) == list(whole):
        return "whole"
    cut = "" if list(sent) == list(whole) else f"; the server sends lines {reading.ranges(sent)}"
    return f"lines {reading.ranges(seen)} of {len(whole)}{cut}"


def _change(run: Run) -> str:
    script, trace = run.script, run.trace
    if roots.ADDED not in script.answers.get("added", ""):
        return "**not found by skills_search**"
    said = "re-lists tools" if trace.count("tools/list") > 1 else "does not re-list tools"
    shown: dict[str, str] = {}
    for label in ("later", "again"):
        later = script.after.get(label)
        tool = ours(later.tools).get("skills_load") if later is not None else None
        for place, text in (
            ("the instructions", later.text if later is not None else ""),
            ("the description", tool.description if tool is not None else ""),
        ):
            if reading.names_in(text, [roots.ADDED]):
                shown.setdefault(place, place if label == "later" else f"{place} after one more search for tools")
    return (
        f"{said}; found by skills_search; shown in {' and '.join(shown.values()) or 'no description or instructions'}"
    )


def _refusal(run: Run) -> str:
    if run.script.equipped is None:
        return "our tools are absent"
    answer = run.script.answers.get(f"load {roots.LONG[0]}")
    if answer is None:
        return f"no answer; the host {run.ended.reason()}"
    return "runs all the same" if reading.lines_in(answer) else f"refused: {answer.strip().splitlines()[0][:120]}"
