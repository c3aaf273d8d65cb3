"""Rules that read the fields of a frontmatter: those that the Agent Skills specification names, and which others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

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
RULES = Rules[SkillMd]()


@RULES.rule("name-missing")
def _name_missing(skill: SkillMd) -> Iterator[Finding]:
    if not skill.name:
        message = "the name is empty or not text" if "name" in skill.frontmatter else "there is no name"
        yield Finding(message, skill.line("name"))


@RULES.rule("name-length")
def _name_length(skill: SkillMd) -> Iterator[Finding]:
    length = len(skill.name)
    if length > MAX_NAME:
        yield Finding(f"the name has {length} characters, at most {MAX_NAME} are allowed", skill.line("name"))


@RULES.rule("name-characters")
def _name_characters(skill: SkillMd) -> Iterator[Finding]:
    odd = _ODD_IN_NAME.search(skill.name)
    if odd is not None:
        yield Finding(f"the name holds {odd[0]!r}", skill.line("name"))


@RULES.rule("name-hyphens")
def _name_hyphens(skill: SkillMd) -> Iterator[Finding]:
    name = skill.name
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield Finding(f"the name {literal(name)} has a hyphen at an end or two in a row", skill.line("name"))


@RULES.rule("name-mismatch")
def _name_mismatch(skill: SkillMd) -> Iterator[Finding]:
    if skill.name and skill.name != skill.directory:
        message = f"the name is {literal(skill.name)} but the directory is {literal(skill.directory)}"
        yield Finding(message, skill.line("name"))


@RULES.rule("description-missing")
def _description_missing(skill: SkillMd) -> Iterator[Finding]:
    if skill.description:
        return
    if "description" not in skill.frontmatter:
        message = "there is no description"
    elif isinstance(skill.frontmatter["description"], str | None):
        message = "the description is empty"
    else:
        message = "the description is not text"
    yield Finding(message, skill.line("description"))


@RULES.rule("description-length")
def _description_length(skill: SkillMd) -> Iterator[Finding]:
    length = len(skill.description)
    if length > MAX_DESCRIPTION:
        message = f"the description has {length} characters, at most {MAX_DESCRIPTION} are allowed"
        yield Finding(message, skill.line("description"))


@RULES.rule("description-utf16")
def _description_utf16(skill: SkillMd) -> Iterator[Finding]:
    length = len(skill.description)
    units = len(skill.description.encode("utf-16-le", "surrogatepass")) // 2
    if length <= MAX_DESCRIPTION < units:
        message = f"the description has {length} characters but {units} UTF-16 units"
        yield Finding(message, skill.line("description"))


@RULES.rule("placeholder")
def _placeholder(skill: SkillMd) -> Iterator[Finding]:
    if template.is_placeholder(skill.description):
        yield Finding("the description is a placeholder", skill.line("description"))


@RULES.rule("description-vague")
def _description_vague(skill: SkillMd) -> Iterator[Finding]:
    length = len(skill.description.strip())
    if 0 < length < _VAGUE and not template.is_placeholder(skill.description):
        yield Finding(f"the description has only {length} characters", skill.line("description"))


@RULES.rule("license-type")
def _license_type(skill: SkillMd) -> Iterator[Finding]:
    if not isinstance(skill.frontmatter.get("license", ""), str):
        yield Finding("the license is not text", skill.line("license"))


@RULES.rule("compatibility-length")
def _compatibility_length(skill: SkillMd) -> Iterator[Finding]:
    value = skill.frontmatter.get("compatibility", "none")
    if not isinstance(value, str):
        yield Finding("compatibility is not text", skill.line("compatibility"))
    elif not 1 <= len(value) <= MAX_COMPATIBILITY:
        yield Finding(f"compatibility has {len(value)} characters", skill.line("compatibility"))


@RULES.rule("allowed-tools-form")
def _allowed_tools_form(skill: SkillMd) -> Iterator[Finding]:
    tools = skill.frontmatter.get("allowed-tools")
    if _is_list_of_texts(tools):
        yield Finding("allowed-tools is a list", skill.line("allowed-tools"))
    elif isinstance(tools, str) and "," in _IN_BRACKETS.sub("", tools):
        yield Finding("allowed-tools separates its tools by commas", skill.line("allowed-tools"))


@RULES.rule("allowed-tools-type")
def _allowed_tools_type(skill: SkillMd) -> Iterator[Finding]:
    tools = skill.frontmatter.get("allowed-tools", "")
    if not isinstance(tools, str) and not _is_list_of_texts(tools):
        yield Finding("allowed-tools is not text", skill.line("allowed-tools"))


def _is_list_of_texts(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


@RULES.rule("broad-permission", deep=True)
def _broad_permission(skill: SkillMd) -> Iterator[Finding]:
    tools = skill.frontmatter.get("allowed-tools")
    entries = tools if isinstance(tools, list) else [tools]
    if any(isinstance(entry, str) and _BROAD.search(entry) for entry in entries):
        yield Finding("allowed-tools allows every shell command", skill.line("allowed-tools"))


@RULES.rule("description-when", deep=True)
def _description_when(skill: SkillMd) -> Iterator[Finding]:
    if skill.description and not _WHEN.search(skill.description):
        yield Finding("the description does not say when to use the skill", skill.line("description"))


@RULES.rule("compatibility-form", deep=True)
def _compatibility_form(skill: SkillMd) -> Iterator[Finding]:
    value = skill.frontmatter.get("compatibility")
    if isinstance(value, str) and value and not _CHECKABLE.search(value):
        message = f"compatibility {literal(value)} names nothing that a program can look for"
        yield Finding(message, skill.line("compatibility"))


@RULES.rule("hooks")
def _hooks(skill: SkillMd) -> Iterator[Finding]:
    if "hooks" in skill.frontmatter:
        yield Finding("the skill declares hooks", skill.line("hooks"))
