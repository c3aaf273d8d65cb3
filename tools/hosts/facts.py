"""What a conversation says of a host: the rows of the table, and where an assertion of ours failed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.hosts import reading, roots, sandbox
from tools.hosts.apis import Seen
from tools.hosts.script import FREE, Script, ours
from tools.hosts.trace import Trace


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


def judge_era(result: Result, run: Run) -> None:
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
    result.facts["a skill added while it runs"] = change(run)


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


def change(run: Run) -> str:
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


def refusal(run: Run) -> str:
    if run.script.equipped is None:
        return "our tools are absent"
    answer = run.script.answers.get(f"load {roots.LONG[0]}")
    if answer is None:
        return f"no answer; the host {run.ended.reason()}"
    return "runs all the same" if reading.lines_in(answer) else f"refused: {answer.strip().splitlines()[0][:120]}"
