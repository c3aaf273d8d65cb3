"""Log lines for the operator: a summary of the first scan, then each change."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from mcp_skills_server import codes
from mcp_skills_server.catalog.path_map import above, join
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import listed, plural
from mcp_skills_server.model import SKILL_MD, Changes, Problem, Skill, Standing, printable

logger = logging.getLogger(__name__)

_LINES_AT_ONCE: Final = 20
_LINES_A_MINUTE: Final = 100
_MINUTE_S: Final = 60.0
_FILES_NAMED: Final = 3
_OWN_LINE: Final = "root-missing"
"""Code of the problem that `RootState` logs when it occurs."""

_LogLine: TypeAlias = tuple[int, str]
"""A level of `logging`, and the message."""
_Key: TypeAlias = tuple[str, str, str]


class _LineLimit:
    """Rate limit of log lines: a program that writes endlessly must not fill the disk."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begun = -_MINUTE_S
        self._spent = 0
        self._suppressed = 0

    def take(self, wanted: int) -> int:
        """Return how many of these lines may be logged now; if none, count all as suppressed."""
        if self._now() - self._begun >= _MINUTE_S:
            self._begun, self._spent = self._now(), 0
        given = min(wanted, _LINES_AT_ONCE, _LINES_A_MINUTE - self._spent)
        self._spent += given
        if not given:
            self._suppressed += wanted
        return given

    def take_suppressed(self) -> int:
        """Return the number of suppressed lines and reset it, once the next minute has begun."""
        if not self._suppressed or self._now() - self._begun < _MINUTE_S:
            return 0
        count, self._suppressed = self._suppressed, 0
        return count


def report_to_log(
    registry: Registry, now: Callable[[], float] = time.monotonic, least: Standing = Standing.VALID
) -> None:
    """Log a summary of the first scan, then every skill and problem that appears, changes or goes.

    Rate limited to 20 lines at once and a hundred a minute, with a count of the rest. `now` is a
    monotonic clock; `least` the lowest standing of the skills in `skills/list`.
    """
    reported: tuple[Problem, ...] | None = None
    limit = _LineLimit(now)

    def report(changes: Changes) -> None:
        nonlocal reported
        before, reported = reported, registry.snapshot.problems
        if before is None:
            _report_first(registry, least)
            return
        lines = sorted(_differences(registry, changes, before), key=lambda line: -line[0])
        if count := limit.take_suppressed():
            logger.warning("%d more changes were not logged (limit: 100 lines a minute)", count)
        shown = limit.take(len(lines))
        for level, text in lines[:shown]:
            logger.log(level, "%s", text)
        if 0 < shown < len(lines):
            came = len(changes.after.keys() - changes.before)
            went = len(changes.before.keys() - changes.after)
            in_all = f"skills: {came} added, {went} removed, {len(changes.after) - came} changed"
            more = "and %d more skills and problems; %s; 'mcp-skills-server validate' shows all"
            logger.log(lines[0][0], more, len(lines) - shown, in_all)

    if registry.loaded.is_set():  # already scanned: log the summary now
        report(Changes({}, {}))
    registry.subscribe(report, problems=True)


def _report_first(registry: Registry, least: Standing) -> None:
    # If the index supplied every skill, no SKILL.md was read and no YAML reader is imported.
    reader = sys.modules.get("mcp_skills_server.format.yaml_reader")
    if reader is not None and not reader.IS_FAST:
        logger.warning(
            "PyYAML lacks its C parser; large folders are read slowly. Install a PyYAML wheel for "
            "this platform"
        )
    snapshot = registry.snapshot
    shown = ", ".join(root.shown for root in registry.roots)
    served = plural(len(snapshot.skills), "skill")
    count = len(snapshot.paths(Standing.VALID))
    if count < len(snapshot.skills):
        served = f"{count:,} of {served}"
    logger.info("serving %s from %s", served, shown)
    short = [skill for skill in snapshot.skills.values() if skill.standing < least]
    if short:
        counts = Counter(skill.standing.shown for skill in short)
        states = ", ".join(f"{plural(counts[state], 'skill')} {state}" for state in sorted(counts))
        reasons = codes.counted_reasons(skill.problems for skill in short)
        logger.warning("%s: %s; 'mcp-skills-server validate' explains each", states, reasons)
    # late import: it is needed once, after the first answer
    from mcp_skills_server.catalog.dot_folders import passed_over

    hidden = passed_over(registry)
    for passed in hidden:
        logger.warning("%s", printable(str(passed)))
    explained = {passed.root for passed in hidden}
    for root in registry.roots if len(registry.roots) > 1 else ():  # for one root the count says it
        of_root = registry.of_root(root)
        if not (root.origin or root.shown in explained or of_root.skills or of_root.problems):
            text = "%s: no skill: no folder there has a SKILL.md"
            logger.warning(text, printable(root.shown))
    problems = [problem for skill in snapshot.skills.values() for problem in skill.problems]
    errors = [
        problem
        for problem in problems
        if problem.severity == "error" or codes.unlisting_problem([problem])
    ]
    errors += [problem for problem in snapshot.problems if problem.code != _OWN_LINE]
    for problem in errors[:_LINES_AT_ONCE]:
        logger.warning("%s", problem)
    if len(errors) > _LINES_AT_ONCE:
        text = "and %d more problems; 'mcp-skills-server validate' shows all"
        logger.warning(text, len(errors) - _LINES_AT_ONCE)


def _differences(
    registry: Registry, changes: Changes, before: tuple[Problem, ...]
) -> Iterator[_LogLine]:
    """Yield a log line for each skill and each problem that appeared, changed or went.

    `before` are the earlier problems outside of every served skill.
    """
    now = registry.snapshot.problems
    of_no_skill = set(now)
    inspected = 0
    files: dict[str, list[str]] = {}
    for skill_path, file_path in changes.files if len(changes.after) <= _LINES_AT_ONCE else ():
        files.setdefault(skill_path, []).append(file_path)
    explained: set[_Key] = set()
    for path in sorted(changes.before.keys() | changes.after.keys()):
        old, new = changes.before.get(path), changes.after.get(path)
        reason: Problem | str | None = None
        # lines beyond that number are only counted, so the disk is not searched for their reason
        if old is not None and new is None and inspected < _LINES_AT_ONCE:
            inspected += 1
            shown = registry.roots[old.root].show(old.directory)
            reason = _obstacle(now, path, shown) or _why_gone(registry, old, changes)
        if new is not None and (old is None or old.standing > new.standing):
            reason = codes.unlisting_problem(new.problems)
        if isinstance(reason, Problem):
            explained.add(_key(reason))
        yield _line_of(path, old, new, reason, sorted(files.get(path, ())))
    was = [*before, *(problem for skill in changes.before.values() for problem in skill.problems)]
    are = [*now, *(problem for skill in changes.after.values() for problem in skill.problems)]
    for problem in _missing_from(was, are):
        if problem.code != _OWN_LINE and _key(problem) not in explained:
            is_grave = problem.severity == "error" or problem in of_no_skill
            yield (logging.WARNING if is_grave else logging.INFO), str(problem)
    for problem in _missing_from(are, was):
        # otherwise the problem went with its skill
        if problem.skill not in changes.before or problem.skill in changes.after:
            yield logging.INFO, f"no longer: {problem}"


def _line_of(
    path: str, old: Skill | None, new: Skill | None, reason: Problem | str | None, files: list[str]
) -> _LogLine:
    name = f"skill {printable(path)}"
    why = f": {reason}" if reason else ""
    if new is None:
        level = logging.WARNING if isinstance(reason, Problem) else logging.INFO
        return level, f"{name}: removed{why}"
    served = new.standing is Standing.VALID
    if old is None:
        if served:
            return logging.INFO, f"{name}: added"
        return logging.WARNING, f"{name}: found, {new.standing.shown}{why}"
    if new.standing < old.standing:
        return logging.WARNING, f"{name}: now {new.standing.shown}{why}"
    if served and old.standing < Standing.VALID:
        return logging.INFO, f"{name}: now {old.standing.shown.removeprefix('not ')}"
    if not files:
        return logging.INFO, f"{name}: changed"
    named = listed([file + _became(old, new, file) for file in files], _FILES_NAMED)
    return logging.INFO, f"{name}: changed ({printable(named)})"


def _became(old: Skill, new: Skill, file: str) -> str:
    if file not in old.files:
        return " added"
    if file in new.files:
        return ""
    return " removed"


def _why_gone(registry: Registry, skill: Skill, changes: Changes) -> str:
    """Inspect the folder of a vanished skill that has no problem, and return why it is gone."""
    root = registry.roots[skill.root]
    for now in changes.after.values():
        if (now.root, now.directory) == (skill.root, skill.directory):
            return f"its path is {printable(now.path)} now"
    folder = root.path
    for up in above(skill.directory):
        folder, link = os.path.join(root.path, up), root.links.get(up)
        if os.path.islink(folder) and not (link and link.target):
            return f"{printable(root.show(up))} is a link that is not followed"
    if not os.path.lexists(os.path.join(registry.place(skill), SKILL_MD)):
        if root.origin is not None:
            return "its source no longer has it"
        if not os.path.lexists(folder):
            return "its folder is gone"
        return f"{root.show(join(skill.directory, SKILL_MD))} is gone"
    return "the last scan did not find it"


def _obstacle(problems: Iterable[Problem], skill: str, folder: str) -> Problem | None:
    """Return the problem, found by a scan or gate, that keeps a skill from being served, or None.

    Another skill hides it, a lock file or a signature refuses it, or a folder cannot be opened.
    """
    closed = None
    for problem in problems:
        is_inside = f"{problem.path}{os.sep}".startswith(folder + os.sep)
        if skill and problem.skill == skill and is_inside:
            return problem
        if problem.code == "unreadable" and f"{folder}{os.sep}".startswith(problem.path + os.sep):
            closed = problem
    return closed


def _key(problem: Problem) -> _Key:
    """Return the identity of a problem: all but its line, which moves when text is added above."""
    return problem.code, problem.path, problem.message


def _missing_from(were: Iterable[Problem], are: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems of `are` that are not in `were`, a multiset difference."""
    known = Counter(map(_key, were))
    for problem in are:
        key = _key(problem)
        if known[key]:
            known[key] -= 1
        else:
            yield problem
