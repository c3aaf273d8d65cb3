"""Any kind of root for users of the library, opened as the commands open it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.options import RootOptions, open_roots
from mcp_skills_server.commands.running import take_in


@contextmanager
def open_registry(
    *roots: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None, allow_private: bool = False
) -> Generator[Registry]:
    """Open a registry of any roots, and keep those current that are fetched while the context is open.

    Args:
        roots: folders, archives, `https://` sites, `git+https://` repositories, `oci://` artifacts, as `serve` takes
            them. The earlier one wins where two have a skill of one path.
        cache_dir: the directory for copies of what is fetched; the user's cache unless given.
        allow_private: also fetch from private addresses.

    Yields:
        The registry, not yet loaded.

    Raises:
        UsageError: a root does not exist, or cannot be read or fetched.
    """
    cache = None if cache_dir is None else os.fspath(cache_dir)
    options = RootOptions(cache_dir=cache, allow_private=allow_private)
    registry, mirrors = open_roots([os.fspath(each) for each in roots], options)
    if mirrors is not None:
        mirrors.report_to(registry.note)
        mirrors.start(partial(take_in, registry))
    try:
        yield registry
    finally:
        if mirrors is not None:
            mirrors.stop()
        registry.close()
