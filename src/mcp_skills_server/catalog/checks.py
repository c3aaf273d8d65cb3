"""Deep checks: problems that only reading all files of a skill shows, cached by skill.

A scan keeps the `Skill` object while its files' bytes are the same, so the object is the cache key.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.path_map import above, join
from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.codes import problem
from mcp_skills_server.errors import plural
from mcp_skills_server.model import Problem, Skill, Snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Survey:
    """Sorted problems of a snapshot, of whose `total` skills `checked` are checked."""

    problems: Sequence[Problem]
    checked: int
    total: int

    @property
    def is_complete(self) -> bool:
        """True when every skill is checked."""
        return self.checked == self.total

    @property
    def progress(self) -> str:
        """Progress of the checks as text, "" when complete."""
        if self.is_complete:
            return ""
        return f"checking {self.checked:,} of {self.total:,} skills"

    @property
    def summary(self) -> str:
        """Numbers of problems and their codes in one line, errors first; "" for none."""
        if not self.problems:
            return ""
        ordered = sorted(self.problems, key=lambda problem: (problem.severity, problem.code))
        counts = Counter(problem.code for problem in ordered).items()
        named = ", ".join(f"{code} ({n:,})" if n > 1 else code for code, n in counts)
        errors = sum(problem.severity == "error" for problem in ordered)
        return f"{plural(errors, 'error')}, {plural(len(ordered) - errors, 'warning')}: {named}"

    @cached_property
    def by_skill(self) -> Mapping[str, Sequence[Problem]]:
        """Problems by skill path, of each skill that has some."""
        out: dict[str, list[Problem]] = {}
        for reported in self.problems:
            out.setdefault(reported.skill, []).append(reported)
        out.pop("", None)
        return out


class Checks:
    """Deep checks of skills, with cached results. Thread-safe."""

    def __init__(self, reader: SkillReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._known: WeakKeyDictionary[Skill, Sequence[Problem]] = WeakKeyDictionary()
        self._surveys: WeakKeyDictionary[Snapshot, Survey] = WeakKeyDictionary()
        self._waiting: dict[SkillSet, None] = {}
        self._urgent: list[Skill] = []
        self._worker: threading.Thread | None = None

    def problems_of(self, skill: Skill) -> Sequence[Problem]:
        """Return the problems in a skill's files, cached unless a file was unreadable."""
        problems = self.known(skill)
        # A read that failed may succeed now, though the skill did not change.
        if problems is None or any(problem.code == "unreadable" for problem in problems):
            problems = inspect(self._reader, skill)
            self.remember(skill, problems)
        return problems

    def known(self, skill: Skill) -> Sequence[Problem] | None:
        """Return the cached problems in a skill's files, or None while unchecked."""
        with self._lock:
            return self._known.get(skill)

    def remember(self, skill: Skill, problems: Sequence[Problem]) -> None:
        """Cache the problems in a skill's files."""
        with self._lock:
            self._known[skill] = tuple(problems)

    def survey(self, snapshot: Snapshot) -> Survey:
        """Return the problems of a snapshot that are known now. Reads no file."""
        with self._lock:
            complete = self._surveys.get(snapshot)
            if complete is not None:
                return complete
            known = [self._known.get(skill) for skill in snapshot.skills.values()]
        checked = [problems for problems in known if problems is not None]
        problems = {*snapshot.all_problems, *catalog_problems(self._reader, snapshot)}
        problems.update(*checked)
        # only `validate` reports notes
        reported = (problem for problem in problems if problem.severity != "note")
        ordered = sorted(reported, key=lambda one: (one.path, one.line or 0, one.code, one.message))
        survey = Survey(ordered, len(checked), len(known))
        if survey.is_complete:
            with self._lock:
                self._surveys[snapshot] = survey
        return survey

    def begin(self, skill_set: SkillSet, first: Skill | None = None) -> None:
        """Check the skills of a set, `first` first, in a thread that ends when all are checked."""
        with self._lock:
            self._waiting[skill_set] = None
            if first is not None:
                self._urgent.append(first)
            if self._worker is None:
                target = self._check_waiting
                self._worker = threading.Thread(target=target, name="skills-checks", daemon=True)
                self._worker.start()

    def _check_waiting(self) -> None:
        while True:
            with self._lock:
                skill_set = next(iter(self._waiting), None)
                if skill_set is None:
                    self._worker = None
                    return
                del self._waiting[skill_set]
            for skill in skill_set.snapshot.skills.values():
                while self._urgent:  # without the lock: no other thread takes from it
                    self._check(self._urgent.pop())
                self._check(skill)

    def _check(self, skill: Skill) -> None:
        if self.known(skill) is not None:
            return
        begun = time.monotonic()
        try:
            self.problems_of(skill)
        except Exception:  # a bug in one rule must not end the checks of the other skills
            logger.exception("%s could not be checked", skill.path)
            self.remember(skill, ())
        time.sleep(time.monotonic() - begun)  # throttle: leave half of the time to requests


def inspect(reader: SkillReader, skill: Skill) -> list[Problem]:
    """Return dangling references, unwanted files and unreadable files of a skill as Problems.

    Nested skills have their own problems. A scan reports files over the limit of bytes.
    """
    from mcp_skills_server.validation import lint  # late import of TOML and lint

    root = reader.roots[skill.root]
    inner = tuple(f"{nested}/" for nested in skill.nested)
    own = {path: file for path, file in skill.files.items() if not path.startswith(inner)}
    located = root.locate(skill.directory)
    # `ignored_in` also enters a nested skill that has lost its SKILL.md, whose files are withheld.
    # So count only names in folders of this skill: those with files of it, and empty ones.
    folders = {up for path in (*own, *skill.empty) for up in above(path)}
    ignored = tree.ignored_in(located.base, located.rest)
    ignored = [path for path in ignored if path.rstrip("/").rpartition("/")[0] in folders]
    problems = [*lint.lint_names(skill, own, ignored)]
    reported = {problem.path for problem in skill.problems if problem.code == "unreadable"}
    for path, file in own.items():
        if file.size > reader.limits.bytes:
            continue
        try:
            problems += lint.lint_file(skill, path, reader.read(file))
        except OSError as error:
            if root.show(join(skill.directory, path)) not in reported:
                text = f"the file cannot be read ({error.strerror})"
                problems.append(problem("unreadable", text).at(path, ""))
    return [
        problem.at(root.show(join(skill.directory, problem.path)), skill.path)
        for problem in problems
    ]


def catalog_problems(reader: SkillReader, snapshot: Snapshot) -> list[Problem]:
    """Return problems of combinations of skills; of `dependencies`, only of resources."""
    from mcp_skills_server.validation import lint

    problems: list[Problem] = []
    for reported in lint.lint_catalog(snapshot):
        skill = snapshot.skills[reported.skill]
        path = join(skill.directory, reported.path) if reported.path else skill.directory
        problems.append(reported.at(reader.roots[skill.root].show(path), skill.path))
    return problems
