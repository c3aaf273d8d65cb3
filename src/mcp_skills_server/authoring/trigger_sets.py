"""Trigger sets: the prompts for which a model should load a skill, and those for which it should not. Pure.

Two formats of the field are read. A trigger set is a JSON array of `{"query": ..., "should_trigger": true}`, as
skill-creator writes it. `evals.json` is `{"skill_name": ..., "evals": [{"prompt": ...}]}`, of which each prompt should
trigger the skill.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, cast

from mcp_skills_server.errors import UsageError

_MOST_CASES: Final = 10_000
_LONGEST: Final = 10_000
"""Characters of a query."""


class TriggerCase(NamedTuple):
    """A prompt, and whether it should have a model load a skill.

    Attributes:
        query: the prompt.
        should_trigger: whether the skill should be loaded for it.
        skill: what the file says that the skill is called, "" where it does not say so.
    """

    query: str
    should_trigger: bool
    skill: str = ""


def read_cases(raw: bytes, place: str) -> list[TriggerCase]:
    """Return the cases of a file.

    Args:
        raw: its bytes.
        place: how messages call the file.

    Raises:
        UsageError: it is none of the two formats. The message says what is wrong, and where.
    """
    try:
        found: Any = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: cannot be read as JSON ({error})") from None
    if isinstance(found, dict) and "evals" in found:
        evals = cast("dict[str, Any]", found)
        name = str(evals.get("skill_name") or "")
        return [
            _case(entry, "prompt", True, name, f"{place}: evals[{at}]") for at, entry in _entries(evals["evals"], place)
        ]
    if isinstance(found, list):
        return [_case(entry, "query", None, "", f"{place}: entry {at}") for at, entry in _entries(found, place)]
    raise UsageError(f'{place}: holds no trigger set; write [{{"query": "...", "should_trigger": true}}]')


def encode_cases(cases: Iterable[TriggerCase]) -> bytes:
    """Return these cases as the JSON of a trigger set."""
    entries = [{"query": each.query, "should_trigger": each.should_trigger} for each in cases]
    return (json.dumps(entries, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "replace")


def _entries(found: Any, place: str) -> list[tuple[int, dict[str, Any]]]:
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in cast("list[Any]", found)):
        raise UsageError(f"{place}: is no list of objects")
    entries = cast("list[dict[str, Any]]", found)
    if len(entries) > _MOST_CASES:
        raise UsageError(f"{place}: has {len(entries):,} cases, at most {_MOST_CASES:,} are read; split the file")
    return list(enumerate(entries))


def _case(entry: dict[str, Any], key: str, should: bool | None, skill: str, place: str) -> TriggerCase:
    query = entry.get(key)
    if not isinstance(query, str) or not query.strip():
        raise UsageError(f"{place} has no text {key!r}")
    if len(query) > _LONGEST:
        raise UsageError(f"{place}: its {key!r} has {len(query):,} characters, at most {_LONGEST:,} are allowed")
    expected = entry.get("should_trigger") if should is None else should
    if not isinstance(expected, bool):
        raise UsageError(f'{place} does not say whether it should trigger; add "should_trigger": true or false')
    named = entry.get("skill") or entry.get("skill_name") or skill
    return TriggerCase(query.strip(), expected, str(named))
