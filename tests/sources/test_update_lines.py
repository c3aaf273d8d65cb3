"""The line of an update: what was added, changed and removed, and from which revision to which, for each kind."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest

from mcp_skills_server.format import archive
from mcp_skills_server.sources.kinds import open_source
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.source import SourceSettings
from sources.fetching import LOCAL
from sources.git.remotes import Upstream
from sources.oci.registries import Fake
from sources.publishers import skill_md

Publish: TypeAlias = "Callable[[Mapping[str, str]], str]"
"""Has a source offer skills, by name with a text; returns the revision, "" where nobody could know it."""
NAMED = re.compile(r".*: fetched ([0-9a-f]{12})(?: \(was ([0-9a-f]{12})\))?: (.*)")


@pytest.fixture(params=[pytest.param("git", marks=pytest.mark.needs_program("git")), "oci", "site", "archive"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Publish]]:
    """The text that names a source, and what publishes in it."""
    upstream, path = Upstream(tmp_path / "a.git") if request.param == "git" else None, tmp_path / "a.tar.gz"

    def files(skills: Mapping[str, str]) -> dict[str, tuple[bytes, bool]]:
        return {f"{name}/SKILL.md": (skill_md(name, text), False) for name, text in skills.items()}

    def commit(skills: Mapping[str, str]) -> str:
        assert upstream is not None
        return upstream.commit(files(skills))

    def push(skills: Mapping[str, str]) -> str:
        found = {name: server.skill(name, {"SKILL.md": skill_md(name, text)}) for name, text in skills.items()}
        return server.collection(found, "1.0").removeprefix("sha256:")

    def offer(skills: Mapping[str, str]) -> str:
        server.entries.clear()
        for name, text in skills.items():
            server.add(name, skill_md(name, text))
        return ""

    def pack(skills: Mapping[str, str]) -> str:
        path.write_bytes(archive.pack(files(skills))[1])
        return ""

    pack({})
    with Fake() as server:
        found = {"oci": (server.named(), push), "site": (server.url, offer), "archive": (str(path), pack)}
        yield found[request.param] if upstream is None else (upstream.url, commit)


def test_an_update_names_its_revisions_and_what_became_of_each_skill(
    source: tuple[str, Publish], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A skill that was removed stood among those that were "fetched", and no revision was named."""
    caplog.set_level(logging.INFO, logger="mcp_skills_server.sources")
    given, publish = source
    settings = SourceSettings(tmp_path / "cache", fetch=LOCAL)

    def follower() -> Follower:
        return Follower(open_source(given, settings))

    def update(following: Follower, skills: Mapping[str, str]) -> tuple[str, re.Match[str]]:
        published = publish(skills)
        caplog.clear()
        anyio.run(partial(following.refresh, anew=True))
        (line,) = [each.getMessage() for each in caplog.records if ": fetched " in each.getMessage()]
        found = NAMED.fullmatch(line)
        assert found is not None, line
        assert published.startswith(found[1]) or not published
        return found[1], found

    following = follower()
    publish({"docx": "One.", "pdf": "One.", "xlsx": "One."})
    anyio.run(following.refresh)
    was = [found[1] for each in caplog.records if (found := NAMED.fullmatch(each.getMessage()))]
    now, line = update(following, {"docx": "One.", "pdf": "Two.", "pptx": "One."})
    assert line[3] == "added pptx; changed pdf; removed xlsx"
    assert line[2] and line[2] != now and was in ([], [line[2]])
    if not given.endswith(".gz"):  # of an archive nothing is kept
        following = follower()
    then, line = update(following, {"docx": "One.", "pptx": "Three."})
    assert (line[2], line[3]) == (now, "changed pptx; removed pdf") and then != now
    caplog.clear()
    anyio.run(partial(following.refresh, anew=True))
    assert caplog.messages == []
