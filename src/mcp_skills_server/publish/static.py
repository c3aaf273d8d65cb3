"""Static export of a publication for any web server, byte for byte what the live server would
answer.

A run writes what has changed. A file is made beside the tree and renamed into its place; the
indexes come last, and what they no longer name goes after that. So a visitor, also after a crash,
finds everything that an index names. What this program did not write is never written over and
never deleted: a record beside the tree has the digest of every file of ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from mcp_skills_server.catalog.disk import digest_of
from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX, INDEX_MEDIA_TYPE
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SKILL_MD, printable
from mcp_skills_server.publish.artifacts import Edition, Item
from mcp_skills_server.publish.folder import STAGING, OutputFolder
from mcp_skills_server.publish.plan import (
    HEADERS,
    INDEXES,
    JOURNAL,
    RECORD,
    OutdatedFile,
    PublishPlan,
    PublishRecord,
    decode_journal,
    decode_record,
    encode_journal,
    hex_of,
    is_place,
    make_plan,
)
from mcp_skills_server.publish.publication import Publication

KEEP_DAYS: Final = 7.0
TREE: Final = DIRECTORY.split("/")[1]
_DAY_S: Final = 86_400
_SAFE: Final = "  X-Content-Type-Options: nosniff\n  Access-Control-Allow-Origin: *\n"
_PAGES: Final = "  Content-Security-Policy: default-src 'none'; sandbox\n"
HEADERS_TEXT: Final = (
    "# Headers of Agent Skills Discovery for hosts that read this file, such as Netlify and "
    "Cloudflare Pages.\n"
    f"{DIRECTORY}{INDEX}\n  Content-Type: {INDEX_MEDIA_TYPE}\n  Cache-Control: public, "
    f"max-age=60\n{_SAFE}"
    f"{DIRECTORY}:name/:digest/:artifact\n  Cache-Control: public, max-age=31536000, "
    f"immutable\n{_SAFE}"
    f"{DIRECTORY}:name/:digest/{SKILL_MD}\n  Content-Type: text/markdown; charset=utf-8\n"
    f"{DIRECTORY_0_1}*\n  Cache-Control: public, max-age=60\n{_SAFE}{_PAGES}"
    f"{DIRECTORY_0_1}{INDEX}\n  Content-Type: {INDEX_MEDIA_TYPE}\n"
    f"{DIRECTORY_0_1}:name/{SKILL_MD}\n  Content-Type: text/markdown; charset=utf-8\n"
)
"""No header stands in two rules that fit one path, or such hosts would send both values as one
(WK-31...33, WK-37)."""


class StaticSite:
    """An output folder: the tree, the record, and the headers if they are wanted.

    Args:
        output: the folder; links are followed. It must be empty, absent or of this program's
            making.
        headers: also write `_headers`.
        keep_days: how long an artifact stays that the index no longer names, for clients that
            cached an old index.
        clock: seconds of the epoch.
        progress: yields what is about to be written and shows how far it is.
    """

    def __init__(
        self,
        output: str,
        *,
        headers: bool = False,
        keep_days: float = KEEP_DAYS,
        clock: Callable[[], float] = time.time,
        progress: Callable[[Sequence[Item]], Iterable[Item]] | None = None,
    ) -> None:
        self._folder = OutputFolder(output, TREE)
        self._headers = headers
        self._keep_s = keep_days * _DAY_S
        self._clock = clock
        self._progress = progress
        with self._as_usage_error("read"):
            self._check_owner()

    def check(self, publication: Publication) -> list[OutdatedFile]:
        """Return what differs from a publication, in path order, without writing.

        Artifacts that stay for a while are no difference.
        """
        with self._as_usage_error("read"):
            self._folder.look_anew()
            plan = self._plan(self._expected(publication, publication.edition()), self._claims())
            return _in_order(plan.differences)

    def write(self, publication: Publication, *, partial: bool = True) -> list[OutdatedFile] | None:
        """Bring the folder up to date, and return what was outdated; touch nothing where nothing
        was.

        Without `partial`, touch nothing and return None where a skill was left out.
        """
        with self._as_usage_error("written"):
            os.makedirs(self._folder.path, exist_ok=True)
            with self._folder.alone():
                self._folder.look_anew()
                self._folder.clear()
                edition = publication.edition()
                if edition.left_out and not partial:
                    return None
                claims = self._claims()
                plan = self._plan(self._expected(publication, edition), claims)
                try:
                    self._carry_out(plan, claims)
                finally:
                    self._folder.clear()
                return _in_order(plan.differences)

    # What is there

    def _check_owner(self) -> None:
        if not os.path.lexists(self._folder.path):
            return
        if not os.path.isdir(self._folder.path):
            raise UsageError(f"{self._folder.shown}: not a folder; give --output a folder")
        found = set(os.listdir(self._folder.path))
        if not {RECORD, JOURNAL} & found and found - {STAGING}:
            raise UsageError(
                f"{self._folder.shown}: the folder is not empty and not of this program's making "
                f"({RECORD} "
                "is missing), and stays as it is; give --output a folder of its own"
            )
        self._records()

    def _records(self) -> tuple[PublishRecord, dict[str, set[str]]]:
        """Return the record, and by path the digests that a killed run was about to write."""
        kept, begun = self._folder.read(RECORD), self._folder.read(JOURNAL)
        try:
            return decode_record(kept), decode_journal(begun)
        except ValueError:
            reason = f"{RECORD} there cannot be read; remove the folder, or give --output another"
            raise UsageError(f"{self._folder.shown}: {reason}") from None

    def _claims(self) -> dict[str, set[str]]:
        """Return by path the digests that a file of ours can have, killed runs included."""
        kept, begun = self._records()
        claims = {path: {digest} for path, digest in kept.files.items() if is_place(path)}
        for path in filter(is_place, begun):
            claims.setdefault(path, set()).update(begun[path])
        return claims

    # What it should be

    def _plan(self, expected: Iterable[Item], claims: Mapping[str, set[str]]) -> PublishPlan:
        kept = self._records()[0]
        return make_plan(
            self._folder, expected, claims, kept, now=int(self._clock()), keep_s=self._keep_s
        )

    def _expected(self, publication: Publication, edition: Edition) -> Iterable[Item]:
        yield from publication.tree(edition)
        if self._headers:
            yield Item(HEADERS, digest_of(HEADERS_TEXT.encode()), HEADERS_TEXT.encode)

    # Putting it there

    def _carry_out(self, plan: PublishPlan, claims: Mapping[str, set[str]]) -> None:
        kept = self._records()[0]
        if plan.put:
            # Written down before it is done: after a crash in between, all of it is still known to
            # be ours.
            begun = {item.path.lstrip("/"): {hex_of(item.digest)} for item in plan.put}
            for path in begun.keys() & claims.keys():
                begun[path] |= claims[path]
            unnamed = {
                path: claims[path] for path in claims.keys() - begun.keys() - kept.files.keys()
            }
            self._folder.replace(JOURNAL, encode_journal({**unnamed, **begun}), lasting=True)
        fresh: list[str] = []
        for path in plan.early:
            self._folder.delete(path, claims[path])
        for item in plan.put if self._progress is None else self._progress(plan.put):
            path = item.path.lstrip("/")
            if path in INDEXES and fresh:
                # an index must not survive a power cut that what it names does not
                self._folder.settle(fresh)
                fresh = []
            # Before what it no longer names is deleted, or an old index could come back without its
            # artifacts.
            lasting = path in INDEXES
            self._folder.put(path, self._raw(path, item), lasting=lasting)
            if not lasting:
                fresh.append(path)
        self._folder.settle(fresh)
        for path in plan.stale:
            self._folder.delete(path, claims[path])
        if plan.record != kept:
            self._folder.replace(RECORD, plan.record.encode(), lasting=True)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder.path, JOURNAL))

    def _raw(self, path: str, item: Item) -> bytes:
        try:
            return item.read()
        except KeyError:
            raise UsageError(
                f"{printable(path)} changed while it was published; run it again"
            ) from None

    @contextmanager
    def _as_usage_error(self, doing: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            place = printable(str(error.filename)) if error.filename else self._folder.shown
            raise UsageError(
                f"{self._folder.shown}: cannot be {doing} ({error.strerror or error}: {place})"
            ) from None


def _in_order(differences: Iterable[OutdatedFile]) -> list[OutdatedFile]:
    return sorted(differences, key=lambda each: each.path)
