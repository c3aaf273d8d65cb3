"""Rules that read the body of a SKILL.md: its length, its references, and what `new` left to write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mcp_skills_server.format import links
from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.validation import template
from mcp_skills_server.validation.rule import Finding, Rules, SkillMd

_MAX_LINES: Final = 500
_MAX_CHARACTERS: Final = 20_000  # about 5,000 tokens

RULES = Rules[SkillMd]()


@RULES.rule("body-empty")
def _body_empty(skill: SkillMd) -> Iterator[Finding]:
    if not skill.document.body:
        yield Finding("there are no instructions", skill.document.body_line)


@RULES.rule("body-long")
def _body_long(skill: SkillMd) -> Iterator[Finding]:
    body, line = skill.document.body, skill.document.body_line
    lines = body.count("\n") + 1
    if lines > _MAX_LINES:
        yield Finding(f"the body has {lines} lines, {_MAX_LINES} are advised", line)
    elif len(body) > _MAX_CHARACTERS:
        message = f"the body has {len(body)} characters, about {len(body) // 4} tokens; 5,000 are advised"
        yield Finding(message, line)


@RULES.rule("reference-deep", deep=True)
def _reference_deep(skill: SkillMd) -> Iterator[Finding]:
    if not any(path.count("/") > 1 for path in skill.files):
        return
    for target, line in _targets(skill).items():
        if target in skill.files and target.count("/") > 1:
            yield Finding(f"{literal(target)} lies more than one level below the skill", line)


@RULES.rule("reference-missing", deep=True)
def _reference_missing(skill: SkillMd) -> Iterator[Finding]:
    def is_there(target: str) -> bool:
        return target in skill.files or any(path.startswith(target + "/") for path in skill.files)

    if not links.may_lead_elsewhere(skill.document.body, is_there):
        return
    # Words in code look like paths more often than they are some.
    for target, line in _targets(skill, code=False).items():
        if not is_there(target):
            yield Finding(f"the body refers to {literal(target)}, which is not in the skill", line)


@RULES.rule("reference-outside", deep=True)
def _reference_outside(skill: SkillMd) -> Iterator[Finding]:
    if ".." not in skill.document.body and "%2e" not in skill.document.body.lower():
        return
    for reference in skill.references:
        if reference.kind == "outside":
            line = skill.document.body_line + reference.line
            yield Finding(f"the body refers to {literal(reference.target)}, which lies outside of the skill", line)


def _targets(skill: SkillMd, *, code: bool = True) -> dict[str, int]:
    """Return what the body refers to, each with the line of its first reference; `code` counts names in code as
    well.
    """
    lines: dict[str, int] = {}
    for reference in skill.references:
        if reference.kind != "outside" and (code or reference.kind != "code"):
            lines.setdefault(reference.target, skill.document.body_line + reference.line)
    return lines


@RULES.rule("placeholder", deep=True)
def _placeholder(skill: SkillMd) -> Iterator[Finding]:
    lines = list(template.placeholders(skill.document.body))
    if lines:
        message = f"{len(lines)} lines of the instructions are as `new` wrote them"
        yield Finding(message, skill.document.body_line + lines[0])
