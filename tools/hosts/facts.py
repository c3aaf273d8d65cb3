"""Facts about a host from its conversations: the rows of the table, and failed checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tools.hosts import setting
from tools.hosts.model import NEEDED, Script, Seen, ours
from tools.hosts.setting import Trace

KEPT: Final = re.compile(r'waits for a person|"state":\s*"pending"')
"""The result of skills_propose for a kept proposal, structured or as text."""
_SERVERS: Final = 2
_BLANKS: Final = re.compile(r"\s+")
_LINE: Final = re.compile(r"Line (\d{5}) of the long body")


def arrived(sent: str, shown: str) -> str:
    """Return the longest prefix of `sent` in `shown`. Runs of whitespace count as one space."""
    sent, shown = _BLANKS.sub(" ", sent).strip(), _BLANKS.sub(" ", shown)
    low, high = 0, len(sent)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sent[:middle] in shown else (low, middle - 1)
    return sent[:low]


def names_in(text: str, names: Iterable[str]) -> int:
    return sum(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None for name in names)


def lines_in(text: str) -> list[int]:
    return sorted({int(number) for number in _LINE.findall(text)})


def ranges(numbers: Sequence[int]) -> str:
    """Return `[1, 2, 3, 7]` as `1-3, 7`."""
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and out[-1][1] == number - 1:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in out)


def form(result: str) -> str:
    """Return the form of a result of skills_load: text, structured, or both."""
    structured = '"active_skills"' in result
    text = re.search(r"(?:\A|\n|\"text\":\s*\")\s*(?:<skill name=|Active skills:)", result) is not None
    return {(True, False): "structuredContent", (False, True): "text", (True, True): "text and structuredContent"}.get(
        (structured, text), "neither text nor structure as sent"
    )


@dataclass
class Run:
    """A finished conversation with a host."""

    names: Sequence[str]
    script: Script
    trace: Trace
    ended: setting.Ended
    faults: Sequence[str]

    def lost(self) -> str:
        """Return why the conversation cannot be evaluated, "" if it can."""
        if not self.trace.instructions() and not self.trace.tools():
            state = "the server answered nothing" if self.trace.requests() else "the server was not asked"
            last = self.trace.log().strip().splitlines()[-1:]
            log = f" (it said {last[0]!r})" if last else ""
            return f"the entry was not accepted: {state}{log}; the host {self.ended.reason()}"
        if self.script.first is None:
            return f"no request reached the model; the host {self.ended.reason()}"
        return ""


@dataclass
class Result:
    """The result for a host: `facts` are the rows of the table, `failures` the failed checks."""

    version: str
    facts: dict[str, str] = field(default_factory=dict[str, str])
    failures: list[str] = field(default_factory=list[str])


def judge_era(result: Result, run: Run) -> None:
    first = run.trace.requests()[0]
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
    """Measure how much of the instructions and of the description of skills_load reaches the model."""
    script, trace = run.script, run.trace
    first, equipped = script.first, script.equipped
    if first is None:
        return
    if equipped is None:
        result.failures.append(f"{label}: our tools were never offered; the host {run.ended.reason()}")
        return
    result.facts["tools"] = _deferred(script, first)
    last = script.after[next(reversed(script.after))] if script.after else equipped
    parts: list[tuple[str, str]] = []
    for when, shown in (("", first), ("while deferred ", script.deferred), ("later ", last)):
        part = _part(trace.instructions(), shown.text, run.names) if shown is not None else ""
        if part and (not parts or parts[-1][1] != part):
            parts.append((when, part))
    result.facts[f"instructions, {label}"] = " · ".join(when + part for when, part in parts)
    tool = ours(equipped.tools)["skills_load"]
    result.facts[f"description of skills_load, {label}"] = _part(
        [tools["skills_load"] for tools in trace.tools() if tools], tool.description, run.names
    )


def _part(versions: Sequence[str], shown: str, names: Sequence[str]) -> str:
    """Return how many characters and names of a text arrived, for the sent version that matches best."""
    if not versions:
        return "none sent"
    sent = max(versions, key=lambda version: len(arrived(version, shown)))
    there, whole = arrived(sent, shown), arrived(sent, sent)
    if len(there) < 40:
        return f"none of {len(whole)}"
    seen, held = names_in(there, names), names_in(whole, names)
    size = f"all {len(whole)}" if there == whole else f"{len(there)} of {len(whole)}"
    return f"{size}; {seen} names" + (f", {held} were sent" if seen < held else "")


def _deferred(script: Script, first: Seen) -> str:
    if script.found is not None:
        return f"deferred; a search brings {script.found}"
    return "in the first request" if ours(first.tools) else "later than the first request"


def judge_search(result: Result, run: Run) -> None:
    """Check that one search among deferred tools brings the needed ones of both servers."""
    counts = {name: sum(tool.name.endswith(name) for tool in run.script.offered) for name in NEEDED}
    shown = ", ".join(f"{name} of {count}" for name, count in counts.items())
    result.facts["two servers"] = f"a search brings {shown}"
    for name in ("skills_search", "skills_load"):
        if counts[name] != _SERVERS:
            result.failures.append(f"two servers: a search for tools brings {name} of {counts[name]} alone")


def judge_calls(result: Result, run: Run) -> None:
    answers = run.script.answers
    checks = {
        "search": ("audit-invoice" in answers.get("search", ""), "skills_search found nothing"),
        "load": ("# audit-invoice" in answers.get("load", ""), "skills_load brought no instructions"),
        "read": (setting.MARK in answers.get("read", ""), "skills_read brought no file"),
        "propose": (KEPT.search(answers.get("propose", "")) is not None, "skills_propose kept nothing"),
    }
    broken = [f"skills_{label}" for label, (good, _) in checks.items() if not good]
    result.facts["search, load, read, propose"] = f"**fail**: {', '.join(broken)}" if broken else "work"
    for label, (good, complaint) in checks.items():
        if not good:
            answer = answers.get(label)
            result.failures.append(
                f"{complaint}: {answer[:200]!r}" if answer is not None else f"{complaint}: no answer"
            )
    result.facts["a result comes as"] = form(answers.get("load", ""))
    for length in setting.LONG:
        whole = lines_in(setting.long_body(length))
        seen = lines_in(answers.get(f"load {length}", ""))
        sent = lines_in(_sent(run.trace, setting.long_name(length)))
        result.facts[f"a body of {length:,} characters"] = _lines(whole, sent, seen)
        if length == setting.LONG[0] and seen not in (whole, sent or whole):
            result.failures.append(f"a body of {length} characters did not arrive whole")
    result.facts["a skill added while it runs"] = change(run)


def _sent(trace: Trace, name: str) -> str:
    for call in trace.requests():
        params = call.get("params", {})
        if call.get("method") == "tools/call" and params.get("arguments", {}).get("names") == [name]:
            for answer in trace.responses():
                if answer.get("id") == call.get("id") and "result" in answer:
                    return json.dumps(answer["result"])
    return ""


def _lines(whole: Sequence[int], sent: Sequence[int], seen: Sequence[int]) -> str:
    if not seen:
        return "none of it"
    if list(seen) == list(whole):
        return "whole"
    if list(sent) == list(seen):
        return f"lines {ranges(seen)} of {len(whole)}, as sent"
    cut = "" if list(sent) == list(whole) else f"; the server sends lines {ranges(sent)}"
    return f"lines {ranges(seen)} of {len(whole)}{cut}"


def change(run: Run) -> str:
    script, trace = run.script, run.trace
    if setting.ADDED not in script.answers.get("added", ""):
        return "**not found by skills_search**"
    relisting = "re-lists tools" if trace.count("tools/list") > 1 else "does not re-list tools"
    shown: dict[str, str] = {}
    for label in ("later", "again"):
        later = script.after.get(label)
        tool = ours(later.tools).get("skills_load") if later is not None else None
        for place, text in (
            ("the instructions", later.text if later is not None else ""),
            ("the description", tool.description if tool is not None else ""),
        ):
            if names_in(text, [setting.ADDED]):
                shown.setdefault(place, place if label == "later" else f"{place} after one more search for tools")
    where = f"shown in {' and '.join(shown.values())}" if shown else "not shown"
    return f"{relisting}; found by skills_search; {where}"


def refusal(run: Run) -> str:
    if run.script.equipped is None:
        return "our tools are absent"
    answer = run.script.answers.get(f"load {setting.LONG[0]}")
    if answer is None:
        return f"no answer; the host {run.ended.reason()}"
    if not lines_in(answer):
        return f"refused: {_first_line(answer)}"
    proposed = run.script.answers.get("propose")
    if proposed is None or KEPT.search(proposed):
        return "runs all the same"
    return f"loads all the same; skills_propose is refused: {_first_line(proposed)}"


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "nothing said"
    return line if len(line) <= 60 else f"{line[:60].rsplit(' ', 1)[0]} ..."
