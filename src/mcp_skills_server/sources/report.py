"""Report of a fetch, for people and for the commands that print it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from mcp_skills_server.codes import problem
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.format import lfs
from mcp_skills_server.model import Problem, printable
from mcp_skills_server.sources.caching import UNSAID_S
from mcp_skills_server.sources.source import SourceTree, TreeChanges
from mcp_skills_server.sources.urls import relative_to_site

REFUSED: Final = "source-refused"
"""The code of a skill that a source does not take."""
Fault: TypeAlias = Literal["publisher", "network", "here"]


@dataclass(frozen=True, slots=True)
class SkillRefusal:
    """A skill that did not arrive. What was there of it before is there still.

    Attributes:
        name: of the skill, or of its entry as far as it has one.
        reason: why, in one line.
        fault: whose: the publisher's, the network's, or that of the folder here.
    """

    name: str
    reason: str
    fault: Fault

    def __str__(self) -> str:
        """Return the refusal as one line."""
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FetchReport:
    """What a refresh did. Names are in the index's order.

    Attributes:
        source: the key of the index, `wellknown.candidates(url)[0]`; records carry it.
        url: of the index that answered.
        version: of its format, None when it is not known and nothing was done; "tree" where the source has no index.
        added: skills that were not there.
        updated: skills that have other files now.
        unchanged: skills that are current.
        edited: skills that are current in the index and were edited in the folder; they stay.
        gone: skills in the folder that the index no longer has.
        pruned: those of them that were removed.
        refused: skills that did not arrive.
        warnings: what else the user should hear, one line each.
        pointers: (skill, path in it) of files that are Git LFS pointers.
        next_check_s: in how many seconds it makes sense to ask again, by the index's cache headers.
        bytes: bytes of all bodies that were downloaded.
    """

    source: str
    url: str
    version: wellknown.Version | Literal["tree"] | None = "tree"
    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    refused: tuple[SkillRefusal, ...] = ()
    warnings: tuple[str, ...] = ()
    pointers: tuple[tuple[str, str], ...] = ()
    next_check_s: float = UNSAID_S
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether the index was understood and everything asked for is there."""
        return self.version is not None and not self.refused

    def tree(self, path: Path, origin: str, before: str = "") -> SourceTree:
        """Return the folder that was brought up to date, with Problems for what the publisher must correct.

        Args:
            path: the folder.
            origin: of the source.
            before: the revision that was served before, "" where it is not known.
        """
        lines = [*map(printable, self.warnings)]
        problems: list[Problem] = []
        for each in self.refused:
            name, reason = printable(each.name), relative_to_site(origin, each.reason)
            if each.fault == "publisher":
                problems.append(problem(REFUSED, printable(reason)).at(f"{origin}/{name}", name))
            else:
                lines.append(f"{name}: {reason}")
        for name, place in self.pointers:  # as `validate` finds them, which reads every file
            problems.append(problem("lfs-pointer", lfs.FAULT, 1).at(f"{origin}/{name}/{place}", name))
        difference = TreeChanges(before, self.added, self.updated, self.pruned)
        complete = all(each.fault == "publisher" for each in self.refused)
        return SourceTree(path, difference, tuple(lines), complete, tuple(problems))
