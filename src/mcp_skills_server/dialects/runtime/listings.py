"""What the listing and the search answer: skills with their descriptions, or what to try where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcp_skills_server.dialects.runtime import lengths
from mcp_skills_server.dialects.runtime.results import CHARACTERS, noted
from mcp_skills_server.dialects.runtime.words import LIST, ToolResult, problems
from mcp_skills_server.format import hidden, identity
from mcp_skills_server.format.markup import contained
from mcp_skills_server.model import Json, Skill


def listing(
    entries: Sequence[Mapping[str, Json]],
    next_after: str | None,
    *,
    characters: int = CHARACTERS,
    note: str | None = None,
) -> ToolResult:
    """The answer of the listing and of the search. Descriptions that together are too long are cut to one length.

    A description that another skill before it has is not repeated, but said to be the same.

    Args:
        entries: what `entry` made of each skill.
        next_after: what the next page is asked for with, None on the last one.
        characters: how long the descriptions may be together.
        note: one line more, for the model.
    """
    said = _without_repeats(entries)
    most = lengths.even(map(len, said), characters)
    shown = [
        {**each, "description": lengths.clipped(description, most)}
        for each, description in zip(entries, said, strict=True)
    ]
    structure: dict[str, Json] = {"skills": [*shown]}
    lines = [_listed(each) for each in shown] or ["No skill fits."]
    if next_after is not None:
        structure["next_after"] = next_after
        lines.append(f'There are more: call {LIST} with after="{next_after}".')
    return noted(lines, structure, note, "\n")


def nothing_fits(near: Sequence[str]) -> str:
    """What a model reads whose question found nothing.

    Args:
        near: names of skills that look like words of the question.
    """
    names = contained(", ".join(map(lengths.one_line, near)))
    nearest = f" Nearest names: {names}." if names else ""
    return f"Try other keywords, in the language of the skills; {LIST} goes through all of them.{nearest}"


def entry(
    name: str,
    skill: Skill,
    location: str,
    *,
    title: str | None = None,
    version: str | None = None,
    tags: Sequence[Json] = (),
) -> dict[str, Json]:
    """A skill as the listing and the search show it, marked with its problems."""
    out: dict[str, Json] = {"name": name, "description": hidden.without(skill.description), "location": location}
    more: dict[str, Json] = {
        "title": title,
        "version": version,
        "tags": [*tags],
        "problems": [*problems(skill)],
        "origin": identity.origin(skill),
    }
    return out | {key: value for key, value in more.items() if value}


def _without_repeats(entries: Sequence[Mapping[str, Json]]) -> list[str]:
    """The descriptions; for one that stood before, if that is shorter, at which skill it stands."""
    first: dict[str, str] = {}
    out: list[str] = []
    for each in entries:
        description, name = str(each["description"]), str(each["name"])
        repeat = f"The same description as {first.setdefault(description, name)}."
        out.append(repeat if first[description] != name and len(repeat) < len(description) else description)
    return out


def _listed(shown: Mapping[str, Json]) -> str:
    # Before the description, which could end with the same words.
    origin = f" [from {shown['origin']}]" if "origin" in shown else ""
    text = f"- {lengths.one_line(str(shown['name']))}{origin}: {lengths.one_line(str(shown['description']))}"
    found = shown.get("problems")
    text += f" [has problems: {'; '.join(map(str, found))}]" if isinstance(found, list) else ""
    return contained(text)
