"""What only a reading of every file of a skill tells. Needs no registry, so that another process can do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.path_index import join
from mcp_skills_server.catalog.reader import Reader
from mcp_skills_server.codes import problem
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Problem, Skill

_NAMES_LOOKED_AT: Final = 100_000


def inspect(reader: Reader, skill: Skill, nested: Sequence[str], most_bytes: int) -> list[Problem]:
    """Dangling references and what should not be in a skill. A file that cannot be read becomes a Problem.

    Args:
        reader: reads its files.
        skill: the skill.
        nested: directories below the root of other skills in it, which have their own problems.
        most_bytes: of a file; a larger one is passed over, since a limit was reported for it.
    """
    from mcp_skills_server.validation import lint  # and with it TOML, which no start needs

    root = reader.roots[skill.root]
    above = skill.directory + "/" if skill.directory else ""
    inner = tuple(f"{directory.removeprefix(above)}/" for directory in nested)
    own = {path: file for path, file in skill.files.items() if not path.startswith(inner)}
    base, _, place = root.locate(skill.directory)
    found = lint.lint_names(skill, own, tree.ignored_in(base, place, most_names=_NAMES_LOOKED_AT))
    known = {each.path for each in skill.problems if each.code == "unreadable"}  # the scan reported them
    for path, file in own.items():
        if file.size > most_bytes:
            continue
        try:
            found += lint.lint_file(skill, path, reader.read(file))
        except StaleFileError as stale:
            if root.show(join(skill.directory, path)) not in known:
                reason = f"the file cannot be read ({stale.reason or 'it changed'})"
                found.append(problem("unreadable", reason).at(path, ""))
    return [each.at(root.show(join(skill.directory, each.path)), skill.path) for each in found]
