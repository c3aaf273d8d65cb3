"""Bare, partial clone of one remote: its refs, its newest commit, its blobs.

Nothing is ever checked out. Trees are fetched with the commit, and blobs on demand where the server
supports it (`--filter=blob:none`). The clone is a cache: it is removed when damaged or large. Only
one process at a time fetches.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import clipped
from mcp_skills_server.model import printable
from mcp_skills_server.sources.git.address import GitAddress, is_commit
from mcp_skills_server.sources.git.program import MAX_FILE_BYTES, REMOTE, Git, GitFailedError
from mcp_skills_server.sources.source import (
    SourceError,
    UnacceptableError,
    UnreachableError,
    UnsignedCommitError,
)

_KEPT_REF: Final = "refs/kept/current"
_FETCH: Final = (
    "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
    "--no-auto-maintenance",
)  # fmt: skip
_WITHOUT_BLOBS: Final = "--filter=blob:none"
_NO_SUCH_OBJECT: Final = re.compile(
    "(?i)not our ref|unadvertised object|no such remote ref|couldn't find remote ref"
    "|did not send all necessary objects"
)
_NO_SUCH_TREE: Final = re.compile("(?i)not a tree object|not a valid object name|from promisor")
_ABBREVIATED: Final = re.compile("[0-9a-fA-F]{7,63}")
_NO_FILTER: Final = "filtering not recognized"
_MAX_PACKS: Final = 100
_MAX_REFS_BYTES: Final = 16 << 20
_MAX_LISTED_BYTES: Final = 256 << 20
_MAX_FILES: Final = 300_000
MAX_PATHS_BYTES: Final = 1 << 16
"""Of the paths that git takes as arguments: for longer ones the whole commit is listed."""
_HISTORY: Final = (64, 1024, 16384)
"""Depths of successive fetches in which the previous commit is searched."""
_HISTORY_UNFILTERED: Final = _HISTORY[:1]
"""The same for servers without filters, where each commit comes with its files."""

_NO_ANSWER: Final = "no answer"
_REASONS: Final = {
    "host key verification failed": (
        "ssh does not know the host's key; connect once with ssh, or add it to known_hosts"
    ),
    "authentication failed|could not read (?:username|password)|terminal prompts disabled"
    "|returned error: 40[13]|permission denied|too many authentication failures|access denied": (
        "access is refused; have a credential helper of git, or ssh's agent, know a password or key"
    ),
    "redirect|returned error: 30[0-9]": (
        "it is elsewhere, or its address ends in .git; give the address that it leads to"
    ),
    "transport '.*' not allowed": (
        "git's configuration or the server leads to another protocol than the address has"
    ),
    "dubious ownership": "the repository belongs to another user; add it to git's safe.directory",
    "repository .* not found|returned error: 404|be a git repository|not a git repository": (
        "there is no repository there, or none that you may see"
    ),
    "could not resolve host|name or service not known": "its host is not known; check the address",
    "certificate": "its certificate is not trusted; name its issuer in http.sslCAInfo",
    "no space left on device|quota exceeded": "the disk is full",
    # a killed index-pack says nothing
    r"ended by signal 25|file size limit|file too large|\A.*invalid index-pack output\s*\Z": (
        "it has more than 4 GiB, or git was killed"
    ),
    "connection (?:refused|timed out|reset|closed)|(?:failed|couldn't) (?:to )?connect"
    "|unreachable|no route to host|too slow|timed out|timeout|no answer|early eof|hung up"
    "|broken pipe|ssl|tls|returned error: [45]|empty reply|recv failure|send failure|remote end": (
        _NO_ANSWER
    ),
    "unknown option|unknown switch|^usage:": ("the program git is too old; install 2.30 or newer"),
}
"""Explanations by regular expression for messages of git, ssh and curl under LC_ALL=C, in order."""
_SAID: Final = re.compile(r"(?:fatal|error|remote|ssh): (.*)")


class Tip(NamedTuple):
    """A commit, and the full name of its ref at the remote ("HEAD"), or "" for a commit id."""

    commit: str
    name: str


class TreeEntry(NamedTuple):
    """A line of `git ls-tree`: octal mode, object id, and path below the folder as bytes."""

    mode: bytes
    object_id: str
    path: bytes


class Repository:
    """Object store of one remote. Every method blocks, and may raise SourceError.

    Args:
        depth: commits that come with the requested one, itself included.
        most_bytes: maximum size of one fetch.
    """

    def __init__(
        self,
        directory: Path,
        address: GitAddress,
        resolve_s: float,
        fetch_s: float,
        *,
        depth: int = 1,
        most_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._directory = directory
        self._address = address
        self._resolve_s = resolve_s
        self._fetch_s = fetch_s
        self._depth = depth
        self.git = Git(directory, address.url, address.protocol, most_bytes=most_bytes)
        self._can_filter = True

    def resolve(self) -> Tip:
        """Resolve the address to a commit, by one `ls-remote` unless it names a commit."""
        ref = self._address.ref
        if is_commit(ref):
            return Tip(ref, "")
        self._make(40)
        if not ref:
            names = ["HEAD"]
        elif ref.startswith("refs/"):
            names = [ref]
        else:
            names = [f"refs/heads/{ref}", f"refs/tags/{ref}"]
        # An annotated tag is an object of its own; `^{}` lists its commit.
        peeled = [f"{name}^{{}}" for name in names if not name.startswith("refs/heads/")]
        words = ("ls-remote", "--quiet", REMOTE, *names, *peeled)
        with self._explaining():
            raw = self.git.run(*words, seconds=self._resolve_s, most=_MAX_REFS_BYTES)
        refs: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").splitlines():
            commit, tab, name = line.partition("\t")
            if tab and is_commit(commit):
                refs.setdefault(name, commit)
        for name in names:
            if name in refs:
                return Tip(refs.get(f"{name}^{{}}", refs[name]), name)
        if not ref:
            raise UnacceptableError("it is empty, or no repository; check the address and @branch")
        hint = ""
        if _ABBREVIATED.fullmatch(ref):  # which no server looks up
            hint = "; a commit is named by its whole id"
        raise UnacceptableError(f"there is no branch or tag {ref!r}{hint}")

    def fetch(self, tip: Tip, before: str = "") -> None:
        """Fetch a commit with its trees, and its blobs if the server cannot filter them out.

        After the commit `before`, the last commits come with it: no more than their changes is
        sent, unlike for a commit alone.
        """
        self._tidy(len(tip.commit))
        depth = self._depth if before in {"", tip.commit} else _HISTORY[0]
        shallow = (f"--depth={depth}", _WITHOUT_BLOBS, REMOTE)
        with self._explaining():
            try:
                self._fetch(*shallow, f"+{tip.commit}:{_KEPT_REF}")
            except GitFailedError as error:  # an old server serves refs only
                if not tip.name or not _NO_SUCH_OBJECT.search(str(error)):
                    raise
                self._fetch(*shallow, f"+{tip.name}:{_KEPT_REF}")
        if not self.has(tip):
            raise UnreachableError("it changed while it was fetched")

    def has(self, tip: Tip) -> bool:
        """Tell whether this commit was the last that `fetch` fetched."""
        wanted = ("rev-parse", "--verify", "--quiet", f"{_KEPT_REF}^{{commit}}")
        try:
            answer = self.git.run(*wanted, seconds=self._resolve_s)
        except GitFailedError:
            return False
        return answer.decode().strip() == tip.commit

    def roots(self) -> Sequence[str]:
        """Return the shallow commits, whose parents were not fetched."""
        try:
            return (self._directory / "shallow").read_text(encoding="ascii").split()
        except FileNotFoundError:
            return ()

    def fetch_blobs(self, tip: Tip, ids: Collection[str], among: Sequence[str]) -> None:
        """Fetch blobs; `among` are arguments of `git rev-list` for fetched trees that have them."""
        if not self._can_filter:
            return
        words = ("rev-list", "--objects", "--missing=print", *among)
        with self._explaining():
            listed = self.git.run(*words, seconds=self._fetch_s, most=_MAX_LISTED_BYTES)
            missing = {line[1:].decode() for line in listed.split(b"\n") if line.startswith(b"?")}
            absent = sorted(missing.intersection(ids))
            if not absent:
                return
            wanted = "\n".join(absent).encode() + b"\n"
            try:
                # No negotiation: in a partial clone, present commits do not imply present blobs.
                settings = ("-c", "fetch.negotiationAlgorithm=noop")
                self._fetch(_WITHOUT_BLOBS, "--stdin", REMOTE, given=wanted, settings=settings)
            except GitFailedError as error:
                if not _NO_SUCH_OBJECT.search(str(error)):
                    raise
                self._can_filter = False
        # the server filters blobs but does not serve them singly: fetch the whole commit
        if not self._can_filter:
            self.clear()
            self.fetch(tip)

    def follows(self, tip: Tip, before: str) -> bool:
        """Tell whether the commit `before` is an ancestor of the `tip` fetched after it."""
        with self._explaining():
            for depth in _HISTORY if self._can_filter else _HISTORY_UNFILTERED:
                if depth > _HISTORY[0]:
                    wanted = ("--filter=tree:0", REMOTE, f"+{tip.commit}:{_KEPT_REF}")
                    self._fetch(f"--depth={depth}", *wanted)
                words = ("rev-list", tip.commit)
                listed = self.git.run(*words, seconds=self._resolve_s, most=_MAX_REFS_BYTES)
                if before.encode() in listed.split():
                    return True
                if not (self._directory / "shallow").exists():
                    return False
        return False

    def changed(self, before: str, commit: str, folder: str) -> Sequence[str] | None:
        """Return the paths that differ below a folder; None for too many, or without the trees."""
        words = ("diff-tree", "-r", "-z", "--no-renames", "--name-only")
        trees = (f"{before}:{folder}", f"{commit}:{folder}")
        try:
            raw = self.git.run(*words, *trees, seconds=self._resolve_s, most=MAX_PATHS_BYTES)
        except GitFailedError:
            return None
        return raw.decode("utf-8", "surrogateescape").split("\0")[:-1]

    def entries(
        self, commit: str, folder: str, paths: Sequence[str] = (), *, deep: bool = True
    ) -> list[TreeEntry]:
        """List all files below a folder, with links and submodules, or raise UnacceptableError.

        With `paths`, only those of them; one that ends in a slash is a folder. Without `deep`,
        folders are listed instead of what is in them.
        """
        only = [f":(literal){path}" for path in paths]
        words = ("ls-tree", *(("-r",) if deep else ()), "-z", f"{commit}:{folder}", "--", *only)
        with self._explaining():
            try:
                raw = self.git.run(*words, seconds=self._fetch_s, most=_MAX_LISTED_BYTES)
            except GitFailedError as error:
                if folder and _NO_SUCH_TREE.search(str(error)):
                    raise UnacceptableError(f"{commit[:12]} has no folder {folder!r}") from None
                if "the answer has more than" in str(error):
                    raise UnacceptableError("it has too many files; name a folder with #") from None
                raise
        # a tree bomb: a few objects that expand to millions of entries
        if raw.count(b"\0") > _MAX_FILES:
            raise UnacceptableError(f"it has more than {_MAX_FILES:,} files; name a folder with #")
        out: list[TreeEntry] = []
        for line in raw.split(b"\0")[:-1]:
            head, _, path = line.partition(b"\t")
            mode, _, object_id = head.split(b" ")
            out.append(TreeEntry(mode, object_id.decode(), path))
        return out

    @contextmanager
    def blobs(self, object_ids: Sequence[str]) -> Generator[IO[bytes]]:
        """Stream the output of `git cat-file --batch` for these blobs, in their order."""
        wanted = "\n".join(object_ids).encode() + b"\n"
        words = ("cat-file", "--batch", "--buffer")
        with (
            self._explaining(),
            self.git.stream(*words, seconds=self._fetch_s, given=wanted) as out,
        ):
            yield out

    def check_signature(self, commit: str, signers: Path) -> None:
        """Verify a commit's signature by an ssh key of `signers`, or raise UnsignedCommitError."""
        settings = [
            f"gpg.ssh.allowedSignersFile={signers}",
            "gpg.ssh.program=ssh-keygen",
            "gpg.minTrustLevel=fully",  # otherwise any signing key is accepted
            "gpg.program=false",  # keys of the user's key ring are not allowed signers
            "gpg.openpgp.program=false",
            "gpg.x509.program=false",
        ]
        options = [word for setting in settings for word in ("-c", setting)]
        try:
            self.git.run(*options, "verify-commit", "--raw", commit, seconds=self._resolve_s)
        except GitFailedError as error:
            if "ssh-keygen" in str(error) and "cannot run" in str(error):
                raise UnreachableError("ssh-keygen is not installed; install OpenSSH") from None
            lines = "; ".join(line.strip() for line in str(error).splitlines()[:2] if line.strip())
            raise UnsignedCommitError(
                f"commit {commit[:12]} is not signed by anybody that --require-signed-commits "
                f"names ({lines or 'it is not signed'})"
            ) from None

    def clear(self) -> None:
        """Remove all objects."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _fetch(self, *arguments: str, given: bytes = b"", settings: Sequence[str] = ()) -> None:
        filters = [argument for argument in arguments if argument.startswith("--filter=")]
        if filters and not self._can_filter:
            arguments = tuple(argument for argument in arguments if argument not in filters)
        try:
            self.git.run(*settings, *_FETCH, *arguments, seconds=self._fetch_s, given=given)
        except GitFailedError:
            self._remove_leftovers()  # a part of a pack, which may fill the disk
            raise
        if filters and _NO_FILTER in self.git.warned:
            self._can_filter = False

    @contextmanager
    def _explaining(self) -> Generator[None]:
        """Convert GitFailedError to an UnreachableError with a reason; if unknown, clear all."""
        try:
            yield
        except GitFailedError as error:
            known = _reason(str(error))
            if known is None:
                self.clear()
            raise UnreachableError(
                known or f"git could not fetch it ({_last_line(str(error))})"
            ) from None

    def _make(self, id_length: int) -> None:
        """Create an empty repository for ids of this length, if there is none."""
        directory = self._directory
        kind = "\tobjectformat = sha256\n" if id_length == 64 else ""
        config = (
            "[core]\n\trepositoryformatversion = 1\n\tbare = "
            f"true\n[extensions]\n\tpartialclone = {REMOTE}\n{kind}"
        )
        try:
            for folder in (directory / "objects", directory / "refs"):
                folder.mkdir(parents=True, exist_ok=True)
            for name, text in (("HEAD", f"ref: {_KEPT_REF}\n"), ("config", config)):
                if not (directory / name).exists():
                    replace_file(directory / name, text.encode(), None)
        except OSError as error:
            raise SourceError(
                f"{directory} cannot be written ({error.strerror or error});"
                " choose another --cache-dir"
            ) from None

    def _tidy(self, id_length: int) -> None:
        """Remove what a killed git left, or the repository if it has grown or has other ids."""
        directory = self._directory
        with suppress(OSError):
            is_long = "sha256" in (directory / "config").read_text()
            packs = [*directory.glob("objects/pack/*.pack")]
            if is_long != (id_length == 64) or len(packs) > _MAX_PACKS:
                self.clear()
        self._remove_leftovers()
        self._make(id_length)

    def _remove_leftovers(self) -> None:
        """Remove the temporary files and locks of a killed git."""
        for pattern in ("*.lock", "refs/kept/*.lock", "objects/pack/tmp_*"):
            for left in self._directory.glob(pattern):
                with suppress(OSError):
                    left.unlink()


def _reason(said: str) -> str | None:
    """Return an explanation of git's failure, or None if its message is unknown."""
    for pattern, words in _REASONS.items():
        if re.search(pattern, said, re.IGNORECASE | re.MULTILINE):
            return f"{words} ({_last_line(said)})" if words is _NO_ANSWER else words
    return None


def _last_line(said: str) -> str:
    """Return git's last line of output, with credentials removed."""
    lines = _SAID.findall(said) or said.splitlines()[:1]
    last = re.sub(r"//[^/@\s']*@", "//", "".join(lines[-1:]).strip())
    return clipped(printable(last)) or "git says nothing"
