"""Bounded overview of the skills, which a model gets at the start.

Each text depends on the overview alone, which keeps prompt caches valid. The budget goes first to
the rule for all models, then to all names, then to descriptions, trigger sentence first.
Descriptions are truncated to a common limit. If that is too short, only some skills have one. If
not even the names fit, the text has groups with counts, and names chosen from the groups in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple
from zlib import crc32

from mcp_skills_server.dialects.runtime.words import (
    LIST,
    LOAD,
    READ,
    RUN,
    SEARCH,
    Loaded,
    Offer,
    Overview,
    clipped,
    max_min_limit,
    one_line,
)
from mcp_skills_server.errors import plural
from mcp_skills_server.format.markup import contained, element, escaped, wrap

OVERVIEW_CHARACTERS: Final = 4_000
"""The longest text that hosts show untruncated: some truncate at 4,096 characters."""
_MIN_DESCRIPTION: Final = 60
"""The minimum length of a truncated description; a shorter one does not say when to use a skill."""
_SOME_DESCRIPTION: Final = 90
"""The maximum length of a description when only some skills have one."""
_WITHOUT_DESCRIPTION: Final = "- without a description here: "
_SENTENCE: Final = re.compile(r"(?<=[.!?])(?<!\b[^\W\d_]\.)\s+(?=[^a-z])|(?<=[。！？])")  # noqa: RUF001
"""Matches between two sentences, but not after "e.g." or "U.S."."""
_TRIGGER: Final = re.compile(
    r"\b(?:used?|invoke|apply|call|load)\b[^.]{0,40}\b(?:when|whenever|while|if|for|before|after|at)\b"
    r"|\buse (?:it|this(?: skill)?) to\b"
    r"|\bwhen(?:ever)? (?:(?:the|a) user|users|you|asked|working)\b|\btriggers? "
    r"(?:on|when|whenever|if|include)\b"
    r"|\b(?:verwende|nutze|benutze)\w{0,8}\b[^.]{0,40}\b(?:wenn|falls|sobald|bei|beim|für|um|zum)\b"
    r"|\butilise\w{0,8}\b[^.]{0,40}\b(?:quand|lorsqu\w{1,8}|si|pour|avant|après)\b"
    r"|\b(?:us(?:ar|[aeo])|usare|[uú]sal[aeo]|utili[sz][aeo]\w{0,8})\b[^.]{0,40}\b(?:cuando|quando|si|se|para|per|antes|al)\b"
    r"|\bgebruik\w{0,8}\b[^.]{0,40}\b(?:als|wanneer|bij|voor|om)\b"
    r"|\b(?:использу|применя)\w{1,8}[^.]{0,40}\b(?:когда|если|для|при)\b"
    r"|(?:当|當|在|需要)[^。]{0,40}(?:时|時)|[适適]用[于於]|用[于於]|場合|とき|際に|때|경우",
    re.IGNORECASE,
)
"""Matches the trigger sentence (when to use the skill) in the most common languages of skills."""
_MAX_GROUPS: Final = 24
_MAX_LABEL: Final = 40

_RULE: Final = (
    f"When a task fits a skill, you MUST call {LOAD} with its name before you use its "
    "instructions, files or scripts; do not guess what they say. Take only what the task needs."
)
_NOT_ALL_NAMES: Final = (
    f"Not all names fit here: call {SEARCH} with words of the task first; {LIST} goes through all."
)
_TAG: Final = "available_skills"
_DOTS: Final = "..."
_NO_FOLDER: Final = "in no folder"
_OTHERS: Final = "\n- in other folders: "
FAMILY: Final = f"To use a skill: search ({SEARCH}), load ({LOAD}), then read its files ({READ})."
"""Part of the descriptions of the tools that each task needs, so that a search finds them together.

Hosts that search among tools rank them by such words. The server's instructions, which Codex counts
to each tool, and the other descriptions do without: those of a second server would come first.
"""


class Shown(NamedTuple):
    """A bounded text, and the part of the skills that it shows."""

    text: str
    names: Collection[int] | None = None  # positions of the named skills; None if it names all
    cut: Mapping[int, str] = MappingProxyType({})
    """The truncated descriptions by position of the skill; "" for an omitted one."""


def instructions(
    overview: Overview, characters: int, *, scripts: bool, active: Sequence[Loaded] | None = None
) -> str:
    """Return the server instructions: the rule, the overview, and the loaded skills.

    The first line, of at most 240 characters, is complete by itself, because some hosts show no
    more. Without skills the result is "".

    Args:
        characters: the limit, loaded skills excluded. The rule is included even if it exceeds it.
        active: the loaded skills; None if results carry their instructions.
    """
    if not overview and not active:
        return ""
    head = _head(overview, scripts=scripts)
    parts = [head, available(overview, characters - len(head) - 2)]
    if active:
        bodies: list[str] = []
        for skill in active:
            attributes = {"name": skill.name}
            if skill.origin is not None:
                attributes["origin"] = skill.origin
            bodies.append(element("skill", attributes, skill.instructions))
        parts.append("These skills are loaded. Where two conflict, the later one applies.")
        parts.append(wrap("active_skills", {}, bodies))
    return "\n\n".join(filter(None, parts))


def in_instructions(overview: Overview, characters: int, *, scripts: bool) -> Shown:
    """Return the overview in the instructions, without its XML tags."""
    if not overview:
        return Shown("")
    return _between_tags(overview, characters - len(_head(overview, scripts=scripts)) - 2)


def _head(overview: Overview, *, scripts: bool) -> str:
    text = f"{first_line(overview)}\n\n{_RULE} The skill then tells how to go on"
    if scripts:
        text += f"; one runs its scripts with {RUN}"
    return f"{text}."


def first_line(overview: Overview) -> str:
    """Return a self-contained first line: the number of skills, and the tools to use them."""
    return (
        f"{skill_count(overview)} here, with instructions for particular tasks: {SEARCH} finds "
        f"skills for a task, {LOAD} gives their instructions by name, {READ} their files. Use both "
        "before you begin a task that may have one."
    )


def skill_count(overview: Overview) -> str:
    """Return the number of skills, in words."""
    if not overview.offers:
        return "Skills"
    text = plural(len(overview.offers), "skill")
    if overview.more:
        return f"More than {text}"
    return text


def available(overview: Overview, budget: int) -> str:
    """Return `<available_skills>` with an element for each skill, or the text of `fit`."""
    shown = _between_tags(overview, budget).text
    if shown:
        return f"<{_TAG}>\n{shown}\n</{_TAG}>"
    return ""


def _between_tags(overview: Overview, budget: int) -> Shown:
    budget -= len(f"<{_TAG}>\n\n</{_TAG}>")
    whole = _elements(overview, budget)
    if whole is None:
        return fit(overview, budget, escaped)
    return Shown(whole)


def fit(overview: Overview, budget: int, escape: Callable[[str], str] = contained) -> Shown:
    """Return an overview of at most `budget` characters.

    `escape` escapes a name or a description for the surrounding text; it must preserve blanks.
    """
    if not overview.more:
        names = [escape(one_line(offer.name)) for offer in overview.offers]
        if sum(len(name) + 2 for name in names) - 2 <= budget:
            return _described(overview, names, budget, escape)
    return _grouped(overview.offers, budget, escape)


def _described(
    overview: Overview, names: Sequence[str], budget: int, escape: Callable[[str], str]
) -> Shown:
    """Return all names, and truncated descriptions of all skills if they fit, else of some."""
    descriptions = [escape(one_line(offer.description)) for offer in overview.offers]
    left = budget + 1 - sum(len(f"- {name}: \n") for name in names)
    most = max_min_limit(map(len, descriptions), left)
    shown = {position: _truncated(text, most) for position, text in enumerate(descriptions)}
    cut = {position: text for position, text in shown.items() if text != descriptions[position]}
    if left >= 0 and all(cut.values()):
        lines = [f"- {name}: {shown[position]}" for position, name in enumerate(names)]
        return Shown("\n".join(lines), cut=cut)
    chosen = _chosen(overview, names, descriptions, budget)
    shown = {position: chosen.get(position, "") for position in range(len(names))}
    cut = {position: text for position, text in shown.items() if text != descriptions[position]}
    if not chosen:
        return Shown(", ".join(names), cut=cut)
    lines = [f"- {names[position]}: {text}" for position, text in sorted(chosen.items())]
    others = [name for position, name in enumerate(names) if position not in chosen]
    if others:
        lines.append(_WITHOUT_DESCRIPTION + ", ".join(others))
    return Shown("\n".join(lines), cut=cut)


def _truncated(description: str, most: int) -> str:
    """Truncate a description from its trigger sentence on; return "" if too little is left."""
    if len(description) <= most:
        return description
    part = clipped(trigger_first(description), most)
    if len(part) < _MIN_DESCRIPTION:
        return ""
    return part


def _chosen(
    overview: Overview, names: Sequence[str], descriptions: Sequence[str], budget: int
) -> Mapping[int, str]:
    """Return the descriptions to show, by position, if only some fit.

    Preferred skills take precedence, then one skill of each group in turn.
    """
    offers = overview.offers
    positions = {offer.path: position for position, offer in enumerate(offers)}
    preferred = [positions[path] for path in overview.preferred if path in positions]
    left = budget - sum(len(name) + 2 for name in names) + 2 - len(_WITHOUT_DESCRIPTION)
    chosen: dict[int, str] = {}
    others = round_robin(groups([(offer.root, offer.path) for offer in offers]))
    for position in dict.fromkeys([*preferred, *others]):
        text = _truncated(descriptions[position], _SOME_DESCRIPTION)
        cost = len(f"- {names[position]}: {text}\n") - len(f"{names[position]}, ")
        if text and cost <= left:
            chosen[position] = text
            left -= cost
    return chosen


def trigger_first(description: str) -> str:
    """Move the trigger sentence (when to use the skill) of a description to its beginning."""
    sentences = [sentence for sentence in _SENTENCE.split(description) if sentence]
    first = next((at for at, sentence in enumerate(sentences) if _TRIGGER.search(sentence)), 0)
    return " ".join([*sentences[first : first + 1], *sentences[:first], *sentences[first + 1 :]])


def shown_part(overview: Overview, shown: Shown, position: int) -> str:
    """Return in words how much of a skill's description is shown."""
    part = shown.cut.get(position)
    if shown.names is not None:  # groups of names have no descriptions
        if position not in shown.names:
            return "not named"
        part = ""
    if part is None:
        return "with its whole description"
    if not part:
        return "by name alone"
    size = len(one_line(overview.offers[position].description))
    return f"{len(part):,} of {size:,} characters of its description: {part}"


def groups(places: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    """Return the largest groups of skills by folder, or else by root, in descending size.

    Args:
        places: (name of the root, skill path) of each skill.

    Returns:
        positions of each group's skills, sorted by a hash of the path: an order independent of the
        alphabet and of other skills.
    """
    folders = [tuple(path.split("/")[:-1]) for _, path in places]
    shared = _shared(folders)
    members: dict[str, list[int]] = {}
    for position, (root, _) in enumerate(places):
        label = next(iter(folders[position][shared:]), root)
        members.setdefault(label, []).append(position)
    largest = sorted(members.items(), key=lambda group: (-len(group[1]), group[0]))[:_MAX_GROUPS]
    hashes = [crc32(path.encode("utf-8", "replace")) for _, path in places]
    for _, positions in largest:
        positions.sort(key=lambda position: (hashes[position], position))
    return dict(largest)


def round_robin(grouped: Mapping[str, Sequence[int]]) -> Iterator[int]:
    """Yield positions round-robin over the groups, as the order in which names are shown."""
    for step in range(max(map(len, grouped.values()), default=0)):
        yield from (positions[step] for positions in grouped.values() if step < len(positions))


def loading(overview: Overview, characters: int) -> str:
    """Return the description of the load tool: the advice, then the skills.

    It is complete without the instructions, which some hosts do not show.
    """
    head, shown = _loading_head(overview), in_loading(overview, characters)
    if not shown.text:
        return head.rpartition("\n\n")[0]
    return f"{head}\n{shown.text}"


def in_loading(overview: Overview, characters: int) -> Shown:
    """Return the overview in the load tool's description."""
    return fit(overview, characters - len(_loading_head(overview)) - 1)


def _loading_head(overview: Overview) -> str:
    return (
        "Load one or more skills by name: returns the instructions of each and the list of its "
        "files. When a task fits a skill, you MUST load the skill before you begin. "
        f"{FAMILY}\n\n{skill_count(overview)}:"
    )


def _elements(overview: Overview, budget: int) -> str | None:
    """Return all skills as XML with full descriptions, or None if they do not fit."""
    pieces: list[str] = []
    for offer in overview.offers:
        fields = {"name": offer.name, "description": one_line(offer.description)}
        if offer.location is not None:
            fields["location"] = offer.location
        lines = [f"<{tag}>{escaped(value)}</{tag}>" for tag, value in fields.items()]
        pieces.append("\n".join(("<skill>", *lines, "</skill>")))
        budget -= len(pieces[-1]) + 1
        if budget < -1:
            return None
    if overview.more:
        return None
    return "\n".join(pieces)


def _grouped(offers: Sequence[Offer], budget: int, escape: Callable[[str], str]) -> Shown:
    """Return the groups with their counts, and as many names as fit, chosen round-robin."""
    if not offers:
        return Shown("", ())
    grouped = groups([(offer.root, offer.path) for offer in offers])
    budget -= len(_NOT_ALL_NAMES)
    rest = len(offers)
    heads: dict[str, str] = {}
    for label, positions in grouped.items():
        head = ""
        if len(grouped) > 1:
            shown = escape(clipped(one_line(label), _MAX_LABEL) or _NO_FOLDER)
            head = f"- {shown} ({len(positions):,}): "
        if len(head) + len(_DOTS) + 1 > budget - len(_OTHERS) - len(f"{rest:,}"):
            break
        heads[label] = head
        budget -= len(head) + len(_DOTS) + 1
        rest -= len(positions)
    last = ""
    if rest and heads:
        last = f"{_OTHERS}{rest:,}"
    budget -= len(last)
    named: dict[str, list[int]] = {label: [] for label in heads}
    labels = {position: label for label in heads for position in grouped[label]}
    unfilled = set(heads)  # a group is filled once a name of it does not fit
    for position in round_robin(grouped):
        label = labels.get(position)
        if label not in unfilled:
            continue
        size = len(escape(one_line(offers[position].name))) + 2
        if size <= budget:
            named[label].append(position)
            budget -= size
        else:
            unfilled.discard(label)
            if not unfilled:
                break
    lines: list[str] = []
    if budget >= 0:
        lines.append(_NOT_ALL_NAMES)
    for label, head in heads.items():
        names = [escape(one_line(offers[position].name)) for position in sorted(named[label])]
        if len(names) < len(grouped[label]):
            names.append(_DOTS)
        lines.append(head + ", ".join(names))
    return Shown("\n".join(lines) + last, {*chain(*named.values())})


def _shared(folders: Sequence[tuple[str, ...]]) -> int:
    """Return the number of leading folders that all paths share."""
    # what the first and the last share in sorted order, all between them share
    first, last = min(folders, default=()), max(folders, default=())
    return next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
