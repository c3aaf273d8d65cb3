"""Commit history of a served repository: the last commits and their diffs, fetched on demand.

The history has its own repository beside the one for skills, and is fetched anew when another
commit is served. It holds commits with trees, and the blobs that the diffs of one skill need.

No program named by the repository or its configuration is started. All output is untrusted: the
field delimiter is random for each call, so no author and no message can forge it.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from filelock import FileLock, Timeout

from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import ignored
from mcp_skills_server.sources.git.address import GitAddress, is_commit, is_git, parse_address
from mcp_skills_server.sources.git.program import Git, GitFailedError
from mcp_skills_server.sources.git.repository import Repository, Tip
from mcp_skills_server.sources.records import read_index, read_records
from mcp_skills_server.sources.source import SourceError

DEPTH: Final = 64
"""Commits, back from the served one, that are searched for those of a skill."""
_MAX_BLOBS: Final = 2_000
_MAX_FETCHED_BYTES: Final = 128 << 20
"""Maximum bytes of one fetch."""
_FETCH_S: Final = 15.0
_AGAIN_S: Final = 60.0
"""Seconds after a failure without another request to the remote."""
MAX_REVISIONS: Final = 20
"""Maximum number of commits shown."""
_MAX_BYTES: Final = 1 << 20
_MAX_TIMES: Final = 16 << 20
_MAX_LINES: Final = 500
_MAX_CHARACTERS: Final = 2_000
"""Maximum length of one line, and of an author or subject."""
_LOG_S: Final = 5.0
_LAST_MOMENT: Final = 253_402_300_799
"""The end of the year 9999: a commit may claim any time."""
_LOG: Final = (
    "log", "--no-show-signature", "--no-color", "--no-mailmap", "--no-notes", "--encoding=UTF-8",
    "--no-renames", f"--max-count={MAX_REVISIONS}",
)  # fmt: skip
_TIMES: Final = (
    "log", "--no-show-signature", "--no-color", "--no-renames", "--name-only", "-z",
    "--max-count=5000",
)  # fmt: skip
_PATCH: Final = ("--patch", "--no-ext-diff", "--no-textconv", "--unified=3")
_WILD: Final = re.compile(r"[*?\[\\]")
_IGNORED: Final = [
    f"{deep}{pattern}{end}"
    for pattern in ignored.PATTERNS
    for deep in ("", "*/")
    for end in ("", "/*")
]
"""Never-served names of files and folders at any depth: git's `*` also matches slashes."""
_CHANGED: Final = re.compile(
    rb":\d{6} \d{6} ([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) [A-Z]\0"
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit that touched the paths, with author and subject as claimed.

    `lines` is a unified diff, empty where git cannot compute it, and truncated unless `is_whole`.
    """

    id: str
    time: float
    author: str
    subject: str
    lines: tuple[str, ...]
    is_whole: bool


def pathspecs(folder: str, without: Sequence[str] = ()) -> list[str]:
    """Return git pathspecs for a folder, without some subfolders and never-served files."""
    prefix, specs = "", [":(top)"]
    if folder:
        prefix, specs = f"{folder}/", [f":(top,literal){folder}"]
    specs += [f":(top,literal,exclude){prefix}{path}" for path in without]
    escaped = _WILD.sub(r"\\\g<0>", prefix)  # these are patterns, no literal paths
    return specs + [f":(top,exclude){escaped}{pattern}" for pattern in _IGNORED]


def read_log(git: Git, places: Sequence[str], *revisions: str) -> list[Commit] | None:
    """Return the last commits that touched these paths, newest first; None if git fails. Blocks.

    Args:
        revisions: where to begin, and with a `^` prefix where to end; HEAD if empty.
    """
    mark = secrets.token_hex(16)
    words = [*_LOG, f"--format={mark}%H{mark}%at{mark}%an{mark}%s{mark}"]
    where = ("--end-of-options", *revisions, "--", *places)
    # if the diffs are too large or incomplete, return the commits without diffs
    for more in (_PATCH, ()):
        try:
            raw = git.run(*words, *more, *where, seconds=_LOG_S, most=_MAX_BYTES)
        except (GitFailedError, SourceError):
            continue
        parts = raw.decode("utf-8", "replace").split(mark)[1:]
        # five fields a commit; the last one is its diff
        return [_commit(*parts[at : at + 5]) for at in range(0, len(parts) - 4, 5)]
    return None


def commit_times(root: Path) -> dict[str, float]:
    """Return the time of the last commit of each file below a root, by relative path. Blocks.

    Only the last 5,000 commits of a working copy are read; {} if there is none, or git fails.
    """
    top, mark = working_copy(root), secrets.token_hex(16)
    if top is None:
        return {}
    above = f"{root.relative_to(top).as_posix()}/".removeprefix("./")
    words = (*_TIMES, f"--format={mark}%at", "--end-of-options", "HEAD", "--")
    try:
        git = Git(top / ".git", url="", protocol="none")
        raw = git.run(*words, *pathspecs(above.rstrip("/")), seconds=_LOG_S, most=_MAX_TIMES)
    except (GitFailedError, SourceError):
        return {}
    times: dict[str, float] = {}
    for commit in raw.decode("utf-8", "replace").split(mark)[1:]:
        moment, *paths = commit.split("\0")
        for path in paths:
            file = path.removeprefix("\n").removeprefix(above)
            times.setdefault(file, _seconds(moment.strip()))
    return times


def changed_blobs(git: Git, places: Sequence[str], *revisions: str) -> set[str]:
    """Return the ids of all blobs that `read_log` would compare, or raise GitFailedError."""
    words = (*_LOG, "--format=", "--raw", "--no-abbrev", "-z")
    where = ("--end-of-options", *revisions, "--", *places)
    raw = git.run(*words, *where, seconds=_LOG_S, most=_MAX_BYTES)
    return {blob.decode() for pair in _CHANGED.findall(raw) for blob in pair if blob.strip(b"0")}


def _commit(commit: str, moment: str, author: str, subject: str, rest: str) -> Commit:
    diff = rest.strip("\n")
    lines = diff.split("\n") if diff else []
    shown = tuple(line[:_MAX_CHARACTERS] for line in lines[:_MAX_LINES])
    author, subject = author[:_MAX_CHARACTERS], subject[:_MAX_CHARACTERS]
    return Commit(commit, _seconds(moment), author, subject, shown, len(lines) <= _MAX_LINES)


def _seconds(moment: str) -> float:
    if moment.isascii() and moment.isdigit():
        return float(min(int(moment), _LAST_MOMENT))
    return 0.0


def working_copy(root: Path) -> Path | None:
    """Return the top directory of this user's own git repository around a root, or None.

    Skills are untrusted, so nothing below the root counts. Nor does a `.git` that refers to another
    place: a file or link (`gitdir:`), `commondir`, or borrowed objects.
    """
    for top in (root, *root.parents):
        path = top / ".git"
        try:
            status = os.lstat(path)
        except OSError:
            continue
        # Checked here, because git checks ownership only of repositories that it discovers.
        is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
        return top if is_own and stat.S_ISDIR(status.st_mode) and _is_whole(path) else None
    return None


def _is_whole(repository: Path) -> bool:
    if any(os.path.lexists(repository / name) for name in ("commondir", "objects/info/alternates")):
        return False
    kept = [repository / name for name in ("HEAD", "objects", "refs")]
    return all(path.exists() and not path.is_symlink() for path in kept)


class History(NamedTuple):
    """The last commits that touched a skill, newest first, or a note why there are none."""

    commits: Sequence[Commit] = ()
    note: str = ""


class _Failure(NamedTuple):
    """A commit whose history could not be fetched, when to try again, and the reason."""

    commit: str
    until: float
    why: str


class Histories:
    """Histories of all git sources. Thread-safe."""

    def __init__(self) -> None:
        self._failed: dict[Path, _Failure] = {}
        """The last failure, by folder of a source."""

    def changes_of(
        self, served: str, origin: str, shown: str, without: Sequence[str] = ()
    ) -> History:
        """Return the commits that touched a served skill. Blocks up to half a minute to fetch them.

        Args:
            shown: the skill's path below `served`; "" for `served` itself.
            without: subfolders to leave out.
        """
        if not is_git(origin):
            return History()
        source = Path(os.path.realpath(served)).parent
        known, folder = read_index(served, origin), _folder(served, shown)
        if folder is None or known is None or not is_commit(known.body):
            return History(note="It is not known which commit this skill is from.")
        tip = Tip(known.body, known.asked)
        failure = self._failed.get(source)
        if failure and failure.commit == tip.commit and monotonic() < failure.until:
            return History(note=failure.why)
        try:
            # whether plain http is allowed was checked when the source was opened
            address = parse_address(origin, http=True)
            inside = "/".join(part for part in (address.folder, folder) if part)
            with FileLock(source / "history.lock", timeout=0):  # do not block a thread
                history = _read(source / "history", address, tip, pathspecs(inside, without))
                none = f"None of the last {DEPTH} commits changed it."
                return History(history, "" if history else none)
        except Timeout:
            return History(note="The history is being fetched; load this page again in a moment.")
        except SourceError as error:
            why = f"The history could not be fetched: {error}"
        except (UsageError, GitFailedError, OSError):
            why = "The history could not be read."
        self._failed[source] = _Failure(tip.commit, monotonic() + _AGAIN_S, why)
        return History(note=why)


def _folder(served: str, folder: str) -> str | None:
    """Return the path in the repository of a served skill, or None if unknown."""
    for record in read_records(served):
        if folder == record.name or folder.startswith(f"{record.name}/"):
            within = folder[len(record.name) + 1 :]
            if record.url == record.source:  # the skill at the root of the repository
                return within
            return "/".join(part for part in (record.name, within) if part)
    return None


def _read(folder: Path, address: GitAddress, tip: Tip, places: Sequence[str]) -> Sequence[Commit]:
    most, seconds = _MAX_FETCHED_BYTES, _FETCH_S
    repository = Repository(folder, address, seconds, seconds, depth=DEPTH, most_bytes=most)
    # Without a protocol, so that git cannot fetch missing objects one by one.
    git = Git(folder, url="", protocol="none")
    if not repository.has(tip):
        repository.clear()
        repository.fetch(tip)
    # Exclude the shallow commits: their parents are missing, so their changes are unknown.
    revisions = [tip.commit, *(f"^{root}" for root in repository.roots())]
    wanted = changed_blobs(git, places, *revisions)
    if len(wanted) <= _MAX_BLOBS:
        repository.fetch_blobs(tip, wanted, [tip.commit, "--", *places])
    return read_log(git, places, *revisions) or ()
