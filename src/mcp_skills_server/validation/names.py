"""Rules that read the names of a skill's files: what some platform cannot hold, and what is not served."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_skills_server.format.ignored import some_of
from mcp_skills_server.validation.rule import FileNames, Finding, Rules

RULES = Rules[FileNames]()


@RULES.rule("ignored-file", deep=True)
def _ignored_file(names: FileNames) -> Iterator[Finding]:
    if names.unserved:
        yield Finding(f"no part of the skill for their names, and not served: {some_of(names.unserved)}")


@RULES.rule("hidden-characters", deep=True)
def _hidden_characters(names: FileNames) -> Iterator[Finding]:
    for fault in names.faults:
        if fault.is_hidden:
            yield Finding(fault.message, hint="rename the file without it", path=fault.path)


@RULES.rule("file-name-portable", deep=True)
def _file_name_portable(names: FileNames) -> Iterator[Finding]:
    return (Finding(fault.message, path=fault.path) for fault in names.faults if not fault.is_hidden)
