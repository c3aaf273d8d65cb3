"""Static export of a publication for any web server, identical to the live server's responses.

A run writes only what has changed. Each file is staged beside the tree and renamed into place.
Indexes are written last, and files that they no longer name are deleted after that. So everything
that an index names exists, even after a crash. Foreign files are never overwritten or deleted: a
record beside the tree has the digest of every file of ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeAlias

from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX, INDEX_MEDIA_TYPE
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SKILL_MD, printable
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.publish.artifacts import Edition, Item
from mcp_skills_server.publish.folder import STAGING, OutputFolder
from mcp_skills_server.publish.plan import (
    HEADERS,
    INDEXES,
    RECORD,
    OutdatedFile,
    PublishPlan,
    PublishRecord,
    decode_record,
    hex_of,
    is_output_path,
    make_plan,
)
from mcp_skills_server.publish.publication import Publication

_Claims: TypeAlias = Mapping[str, set[str]]
KEEP_DAYS: Final = 7.0
TREE: Final = DIRECTORY.split("/")[1]
_DAY_S: Final = 86_400
_SAFE: Final = "  X-Content-Type-Options: nosniff\n  Access-Control-Allow-Origin: *\n"
_INERT: Final = "  Content-Security-Policy: default-src 'none'; sandbox\n"
HEADERS_TEXT: Final = (
    "# Headers of Agent Skills Discovery for hosts that read this file, such as Netlify and "
    "Cloudflare Pages.\n"
    f"{DIRECTORY}{INDEX}\n  Content-Type: {INDEX_MEDIA_TYPE}\n  Cache-Control: public, "
    f"max-age=60\n{_SAFE}"
    f"{DIRECTORY}:name/:digest/:artifact\n  Cache-Control: public, max-age=31536000, "
    f"immutable\n{_SAFE}"
    f"{DIRECTORY}:name/:digest/{SKILL_MD}\n  Content-Type: text/markdown; charset=utf-8\n"
    f"{DIRECTORY_0_1}*\n  Cache-Control: public, max-age=60\n{_SAFE}{_INERT}"
    f"{DIRECTORY_0_1}{INDEX}\n  Content-Type: {INDEX_MEDIA_TYPE}\n"
    f"{DIRECTORY_0_1}:name/{SKILL_MD}\n  Content-Type: text/markdown; charset=utf-8\n"
)
"""No header occurs in two rules that match one path, since such hosts would join both values
(WK-31...33, WK-37)."""


class StaticSite:
    """Static site in an output folder: the tree, the record, and optional headers.

    Args:
        output: the folder; links are followed. It must be empty, absent or written by this program.
        headers: also write `_headers`.
        keep_days: retention of artifacts that the index does not name, for clients that cached an
            old index.
        clock: seconds since the epoch.
        progress: yields the files to write, and shows how far it is.
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
        """Return the files that differ from a publication, in path order, without writing.

        Retained artifacts are no difference.
        """
        with self._as_usage_error("read"):
            kept, claims = self._records()
            return self._plan(publication, publication.edition(), claims, kept).differences

    def write(self, publication: Publication, *, partial: bool = True) -> list[OutdatedFile] | None:
        """Update the folder to a publication, and return the files that were outdated.

        Without `partial`, write nothing and return None if a skill cannot be published.
        """
        with self._as_usage_error("written"):
            os.makedirs(self._folder.path, exist_ok=True)
            with self._folder.locked():
                self._folder.clear()
                edition = publication.edition()
                if edition.left_out and not partial:
                    return None
                kept, claims = self._records()
                plan = self._plan(publication, edition, claims, kept)
                try:
                    self._carry_out(plan, claims, kept)
                finally:
                    self._folder.clear()
                return plan.differences

    # Current state

    def _check_owner(self) -> None:
        if not os.path.lexists(self._folder.path):
            return
        if not os.path.isdir(self._folder.path):
            raise UsageError(f"{self._folder.shown}: not a folder; give --output a folder")
        names = set(os.listdir(self._folder.path))
        if RECORD not in names and names - {STAGING}:
            raise UsageError(
                f"{self._folder.shown}: the folder is not empty and not written by this program "
                f"({RECORD} is missing), and stays as it is; give --output a folder of its own"
            )
        self._records()

    def _records(self) -> tuple[PublishRecord, _Claims]:
        """Return the record, and by path the digests that a file of ours can have.

        Among these are the ones that a killed run may have written.
        """
        try:
            record = decode_record(self._folder.read(RECORD))
        except ValueError:
            reason = f"{RECORD} there cannot be read; remove the folder, or give --output another"
            raise UsageError(f"{self._folder.shown}: {reason}") from None
        claims = {path: {digest} for path, digest in record.files.items() if is_output_path(path)}
        for path in filter(is_output_path, record.begun):
            claims.setdefault(path, set()).update(record.begun[path])
        return record, claims

    def _plan(
        self, publication: Publication, edition: Edition, claims: _Claims, kept: PublishRecord
    ) -> PublishPlan:
        expected = [*publication.tree(edition)]
        if self._headers:
            headers = HEADERS_TEXT.encode()
            expected.append(Item(HEADERS, digest_of(headers), lambda: headers))
        now = int(self._clock())
        return make_plan(self._folder, expected, claims, kept, now=now, keep_s=self._keep_s)

    # Writing

    def _carry_out(self, plan: PublishPlan, claims: _Claims, kept: PublishRecord) -> None:
        if plan.put:
            # The write-ahead log: after a crash, the next run still knows which files are ours.
            begun = {**kept.begun}
            for item in plan.put:
                path = item.path.lstrip("/")
                begun[path] = {hex_of(item.digest), *claims.get(path, ())}
            self._folder.replace(RECORD, replace(kept, begun=begun).encode(), lasting=True)
        fresh: list[str] = []
        for path in plan.early:
            self._folder.delete(path, claims[path])
        for item in plan.put if self._progress is None else self._progress(plan.put):
            path = item.path.lstrip("/")
            # Sync the index before stale artifacts are deleted, which an old index needs.
            lasting = path in INDEXES
            if lasting:
                # sync artifacts first: an index must not survive a power cut without them
                self._folder.sync(fresh)
                fresh.clear()
            else:
                fresh.append(path)
            self._folder.put(path, self._raw(path, item), lasting=lasting)
        self._folder.sync(fresh)
        for path in plan.stale:
            self._folder.delete(path, claims[path])
        if plan.put or plan.record != kept:
            self._folder.replace(RECORD, plan.record.encode(), lasting=True)

    def _raw(self, path: str, item: Item) -> bytes:
        try:
            return item.read()
        except KeyError:
            fault = f"{printable(path)} changed while it was published; run it again"
            raise UsageError(fault) from None

    @contextmanager
    def _as_usage_error(self, doing: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            where = printable(str(error.filename)) if error.filename else self._folder.shown
            fault = f"cannot be {doing} ({error.strerror or error}: {where})"
            raise UsageError(f"{self._folder.shown}: {fault}; give another folder") from None
