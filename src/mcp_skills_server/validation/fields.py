"""Rules that read the fields of a frontmatter: those that the Agent Skills specification names, and which others."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.model import Json
from mcp_skills_server.validation import template
from mcp_skills_server.validation.rule import Finding, Rules, SkillMd

SPECIFIED_FIELDS: Final = frozenset(("name", "description", "license", "compatibility", "metadata", "allowed-tools"))
HOST_FIELDS: Final = frozenset(("disable-model-invocation", "user-invocable", "argument-hint"))
"""What hosts read at the top level, and this server with them."""
EXTENSION_FIELDS: Final = frozenset(("arguments", "dependencies", "icons", "files"))
MAX_NAME: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_COMPATIBILITY: Final = 500
_VAGUE: Final = 20
_ODD_IN_NAME: Final = re.compile(r"[^a-z0-9-]")
_IN_BRACKETS: Final = re.compile(r"\([^()]*\)")
_BROAD: Final = re.compile(r"(?:^|[\s,])(?:Bash|Shell|Terminal)(?:\(\s*+(?:\*\s*+(?::\s*+\*\s*+)?)?\))?(?=$|[\s,])")
_WHEN: Final = re.compile(
    r"\b(?:when(?:ever)?|if|for|before|after|during|while|triggers?|asks?|wants?|needs?|used? (?:to|in|by|on|with|as)"
    r"|use (?:this|it|proactively)|must be used)\b",
    re.IGNORECASE,
)
"""Words by which a description says for what, or when, its skill is to be used."""
_CHECKABLE: Final = re.compile(
    r"\d|_|\b(?:python|node|npm|git|docker|bash|java|ruby|rust|go|deno|bun|uv|pip|linux|macos|windows|network|internet"
    r"|claude|codex|cursor|copilot|gemini|opencode|mcp|api|cli|browser|chrome)\b",
    re.IGNORECASE,
)
_Result: TypeAlias = tuple[Finding, ...]
"""Most rules find one thing or nothing, and they run for every skill at every scan: a generator would cost more."""

RULES = Rules[SkillMd]("frontmatter")


@RULES.rule("name-missing")
def _name_missing(skill: SkillMd) -> _Result:
    if skill.name:
        return ()
    message = "the name is empty or not text" if "name" in skill.frontmatter else "there is no name"
    return (Finding(message, skill.line("name")),)


@RULES.rule("name-length")
def _name_length(skill: SkillMd) -> _Result:
    length = len(skill.name)
    if length <= MAX_NAME:
        return ()
    return (Finding(f"the name has {length} characters, at most {MAX_NAME} are allowed", skill.line("name")),)


@RULES.rule("name-characters")
def _name_characters(skill: SkillMd) -> _Result:
    odd = _ODD_IN_NAME.search(skill.name)
    return (Finding(f"the name holds {odd[0]!r}", skill.line("name")),) if odd else ()


@RULES.rule("name-hyphens")
def _name_hyphens(skill: SkillMd) -> _Result:
    name = skill.name
    if not (name.startswith("-") or name.endswith("-") or "--" in name):
        return ()
    return (Finding(f"the name {literal(name)} has a hyphen at an end or two in a row", skill.line("name")),)


@RULES.rule("name-mismatch")
def _name_mismatch(skill: SkillMd) -> _Result:
    name = skill.name
    if not name or name == skill.directory:
        return ()
    return (
        Finding(f"the name is {literal(name)} but the directory is {literal(skill.directory)}", skill.line("name")),
    )


@RULES.rule("description-missing")
def _description_missing(skill: SkillMd) -> _Result:
    if skill.description:
        return ()
    value = skill.frontmatter.get("description")
    message = "the description is empty" if "description" in skill.frontmatter else "there is no description"
    if value is not None and not isinstance(value, str):
        message = "the description is not text"
    return (Finding(message, skill.line("description")),)


@RULES.rule("description-length")
def _description_length(skill: SkillMd) -> _Result:
    length = len(skill.description)
    if length <= MAX_DESCRIPTION:
        return ()
    message = f"the description has {length} characters, at most {MAX_DESCRIPTION} are allowed"
    return (Finding(message, skill.line("description")),)


@RULES.rule("description-utf16")
def _description_utf16(skill: SkillMd) -> _Result:
    description = skill.description
    if description.isascii() or len(description) > MAX_DESCRIPTION:
        return ()
    units = len(description.encode("utf-16-le", "surrogatepass")) // 2
    if units <= MAX_DESCRIPTION:
        return ()
    message = f"the description has {len(description)} characters but {units} UTF-16 units"
    return (Finding(message, skill.line("description")),)


@RULES.rule("placeholder")
def _placeholder(skill: SkillMd) -> _Result:
    if not template.is_placeholder(skill.description):
        return ()
    return (Finding("the description is a placeholder", skill.line("description")),)


@RULES.rule("description-vague")
def _description_vague(skill: SkillMd) -> _Result:
    description = skill.description
    length = len(description.strip())
    if not 0 < length < _VAGUE or template.is_placeholder(description):
        return ()
    return (Finding(f"the description has only {length} characters", skill.line("description")),)


@RULES.rule("license-type")
def _license_type(skill: SkillMd) -> _Result:
    if isinstance(skill.frontmatter.get("license", ""), str):
        return ()
    return (Finding("the license is not text", skill.line("license")),)


@RULES.rule("compatibility-length")
def _compatibility_length(skill: SkillMd) -> _Result:
    value = skill.frontmatter.get("compatibility", "none")
    if isinstance(value, str):
        if 1 <= len(value) <= MAX_COMPATIBILITY:
            return ()
        return (Finding(f"compatibility has {len(value)} characters", skill.line("compatibility")),)
    return (Finding("compatibility is not text", skill.line("compatibility")),)


@RULES.rule("allowed-tools-form")
def _allowed_tools_form(skill: SkillMd) -> _Result:
    tools = skill.frontmatter.get("allowed-tools")
    if isinstance(tools, str):
        if "," in tools and "," in _IN_BRACKETS.sub("", tools):
            return (Finding("allowed-tools separates its tools by commas", skill.line("allowed-tools")),)
    elif _is_list_of_texts(tools):
        return (Finding("allowed-tools is a list", skill.line("allowed-tools")),)
    return ()


@RULES.rule("allowed-tools-type")
def _allowed_tools_type(skill: SkillMd) -> _Result:
    tools = skill.frontmatter.get("allowed-tools", "")
    if isinstance(tools, str) or _is_list_of_texts(tools):
        return ()
    return (Finding("allowed-tools is not text", skill.line("allowed-tools")),)


def _is_list_of_texts(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


@RULES.rule("broad-permission", deep=True)
def _broad_permission(skill: SkillMd) -> _Result:
    tools = skill.frontmatter.get("allowed-tools")
    entries = tools if isinstance(tools, list) else [tools]
    if not any(isinstance(entry, str) and _BROAD.search(entry) for entry in entries):
        return ()
    return (Finding("allowed-tools allows every shell command", skill.line("allowed-tools")),)


@RULES.rule("description-when", deep=True)
def _description_when(skill: SkillMd) -> _Result:
    if not skill.description or _WHEN.search(skill.description):
        return ()
    return (Finding("the description does not say when to use the skill", skill.line("description")),)


@RULES.rule("compatibility-form", deep=True)
def _compatibility_form(skill: SkillMd) -> _Result:
    value = skill.frontmatter.get("compatibility")
    if not isinstance(value, str) or not value or _CHECKABLE.search(value):
        return ()
    message = f"compatibility {literal(value)} names nothing that a program can look for"
    return (Finding(message, skill.line("compatibility")),)


@RULES.rule("hooks")
def _hooks(skill: SkillMd) -> _Result:
    return (Finding("the skill declares hooks", skill.line("hooks")),) if "hooks" in skill.frontmatter else ()
