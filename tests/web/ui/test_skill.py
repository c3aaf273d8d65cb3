"""The view of a skill and of its files over HTTP."""

from __future__ import annotations

import hashlib
import html
import os
import re
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catalog.forest import plant
from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.web.ui.pages.history import commits
from sources.git.conftest import BASE
from sources.git.remotes import Upstream, skill
from web.http_wire import Server, bearing, token_file, until
from web.test_grants import ANN, BOB
from web.ui.serving import get, grant, page_serving, words
from wire import write_skill

DEEP = "/".join("abcdefghijkl")
BODY = "# Refunds\n\nSee [limits](references/limits.md), ![scheme](scheme.png) and [far](https://example.org/x).\n"


def png() -> bytes:
    """One black pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


def page(server: Server, path: str) -> str:
    reply = get(server, path)
    assert reply.status == 200, words(reply)
    return reply.body.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skills of all sorts, which no test changes."""
    root = tmp_path_factory.mktemp("skills")
    refunds = write_skill(root / "refunds", body=BODY, references__limits_md="# Limits\n")
    kinds = write_skill(root / "kinds", notes_md="# Notes\n", plain_txt="x<y\u200bz", big_txt="x\n" * (1 << 20))
    for each in (refunds, kinds):
        (each / "scheme.png").write_bytes(png())
    (kinds / "data.bin").write_bytes(bytes(range(256)))
    (kinds / "zero.bin").write_bytes(bytes(1 << 20))
    fields = "x\narguments: [{name: city, description: Which one, required: true}, {name: day, default: today}]"
    write_skill(root / "weather", description=fields, body="Weather of {{city}} on {{day}} {{other}}\n")
    write_skill(root / "user", description="x\ndisable-model-invocation: true")
    write_skill(root / "model", description="x\nuser-invocable: false")
    deep = f"{DEEP.replace('/', '__')}__z_md"
    write_skill(root / "tree", **{"x__y__one_md": "# One\n", "x__two_md": "# Two\n", deep: "z"})
    write_skill(root / "many", **{f"f{number}_md": f"# {number}\n" for number in range(500)})
    write_skill(root / "long", body="*a [b](c) " * 60_000)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with page_serving(folder) as started:
        yield started


def test_it_shows_what_the_skill_says_rendered_and_as_it_is(server: Server, folder: Path) -> None:
    text = page(server, "/ui/skills/refunds")
    assert '<a href="/ui/files/refunds?file=references/limits.md">limits</a>' in text
    assert '<img src="/ui/raw/refunds?file=scheme.png" alt="scheme"' in text
    assert '<a href="https://example.org/x" rel="noopener noreferrer nofollow">far</a>' in text
    raw = re.search(r'<pre id="raw"[^>]*>(.*?)</pre>', page(server, "/ui/skills/refunds?text=raw"), re.DOTALL)
    assert raw and html.unescape(raw[1]) == (folder / "refunds" / "SKILL.md").read_text(encoding="utf-8")
    digest = hashlib.sha256((folder / "refunds" / "SKILL.md").read_bytes()).hexdigest()
    assert f"sha256:{digest[:16]}" in text
    assert "Hosts that support skills" in words(text) and str(folder) not in text
    assert "/mcp" in text and "Bearer" not in text


def test_a_file_is_shown_by_its_kind_and_size(server: Server) -> None:
    assert "<h3>Notes</h3>" in page(server, "/ui/files/kinds?file=notes.md")
    plain = page(server, "/ui/files/kinds?file=plain.txt")
    assert 'x&lt;y<span class="hidden">U+200B</span>z' in plain and "It has 1 invisible characters" in words(plain)
    assert 'src="/ui/raw/kinds?file=scheme.png"' in page(server, "/ui/files/kinds?file=scheme.png")
    for name in ("data.bin", "zero.bin"):
        assert "neither text nor a picture" in words(page(server, f"/ui/files/kinds?file={name}"))
    for name, kind, content in (
        ("scheme.png", "image/png", png()), ("data.bin", "application/octet-stream", bytes(range(256))),
    ):  # fmt: skip
        reply = get(server, f"/ui/raw/kinds?file={name}")
        assert (reply.headers["Content-Type"], reply.body) == (kind, content)
    assert "attachment" in (get(server, "/ui/raw/kinds?file=notes.md&keep=1").headers["Content-Disposition"] or "")
    assert "The file is too large to be shown" in words(page(server, "/ui/files/kinds?file=big.txt"))
    assert len(get(server, "/ui/raw/kinds?file=big.txt").body) == 2 << 20
    text = page(server, "/ui/skills/many")
    assert text.count('href="/ui/files/many?file=') == 501 and len(text) < 500_000
    text = page(server, "/ui/skills/long")
    assert "too long to be rendered" in words(text) and len(text) < 500_000


def test_arguments_are_filled_in(server: Server) -> None:
    text = page(server, "/ui/skills/weather")
    assert 'name="arg.city"' in text and 'value="today"' in text and 'id="filled"' not in text
    assert "Missing required argument" not in words(text), "nobody filled it in yet"
    text = page(server, "/ui/skills/weather?fill=1&arg.city=%3Cb%3EBonn")
    assert "Weather of &lt;b&gt;Bonn on today {{other}}" in text
    assert "Missing required argument" in words(page(server, "/ui/skills/weather?fill=1"))
    assert "has no argument" in words(page(server, "/ui/skills/weather?fill=1&arg.city=x&arg.none=y"))


def test_who_sees_it_is_what_its_frontmatter_says(server: Server) -> None:
    for name, model, user in (("user", "no", "yes"), ("model", "yes", "no")):
        text = words(page(server, f"/ui/skills/{name}"))
        assert f"{model} Models, through tools" in text and f"{user} Users, as a prompt" in text


def test_files_are_a_tree_whose_links_say_the_whole_path(server: Server) -> None:
    text = page(server, "/ui/skills/tree")
    assert 'aria-label="x/y/one.md"><bdi>one.md</bdi>' in text
    assert "x / 2 files, 12 bytes two.md 6 bytes sha256:" in words(text)
    assert "y / 1 file, 6 bytes one.md 6 bytes" in words(text)
    assert "<bdi>i/j/k/l/z.md</bdi>" in text and text.count("<summary><bdi>") == 2 + 8
    assert "4 tokens If every other text file were read too" in words(text)
    assert get(server, f"/ui/files/tree?file={DEEP}/z.md").status == 200


def test_only_files_of_the_skill_can_be_had(skills: Path) -> None:
    (skills.parent / "secret.txt").write_text("secret", encoding="utf-8")
    with page_serving(skills) as server:
        elsewhere = ("../secret.txt", "../../secret.txt", "/etc/passwd", "", ".", "SKILL.md/../../../secret.txt", "%00")
        for file in elsewhere:
            for view in ("files", "raw"):
                reply = get(server, f"/ui/{view}/refunds?file={file}")
                assert reply.status == 404 and b"secret" not in reply.body.replace(b"secret.txt", b""), file
        for path in ("../refunds", "%2e%2e/refunds", "b", "refunds/b", "%ff", "refunds%00"):
            assert get(server, f"/ui/skills/{path}").status == 404, path


def test_a_change_is_shown_as_a_difference(tmp_path: Path) -> None:
    directory = write_skill(tmp_path / "a", body="# One\n\nfirst line\n")
    with page_serving(tmp_path) as server:
        assert "It has not changed." in words(page(server, "/ui/history/a"))
        write_skill(directory, body="# One\n\nsecond <b>line\n", more_md="new\n")
        until(lambda: "-first line" in words(page(server, "/ui/history/a")))
        text = words(page(server, "/ui/history/a"))
        assert "+second <b>line" in text and "file added: more.md" in text
        assert "changed" in words(page(server, "/ui/skills/a"))


def git(where: Path, *arguments: str) -> str:
    """What git says, by an author of ours."""
    command = ["git", "-c", "user.name=Ann & Bob", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, cwd=where, check=True, capture_output=True, text=True).stdout


def commit_all(where: Path, subject: str) -> None:
    """Make a repository of a folder, with one more commit."""
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", subject)):
        git(where, *arguments)


@pytest.mark.needs_program("git")
def test_git_tells_what_was_before_the_start_and_runs_nothing_of_the_folder(tmp_path: Path) -> None:
    hit, repository = tmp_path / "hit", tmp_path / "repo"
    for body, subject in (("# One\n", "first"), ("# Two\n", "second <script>")):
        write_skill(repository / "skills" / "a", body=body)
        commit_all(repository, subject)
    (repository / ".gitattributes").write_text("*.md diff=evil\n", encoding="utf-8")
    evil = ("diff.evil.textconv", "diff.evil.command", "diff.external", "gpg.program", "core.fsmonitor", "core.pager")
    for key in evil:
        git(repository, "config", key, f"touch {hit}")
    git(repository, "config", "log.showSignature", "true")
    with page_serving(repository / "skills") as server:
        text = page(server, "/ui/history/a")
        assert "second &lt;script&gt;" in text and "Ann &amp; Bob" in text
        assert "-# One" in text and "+# Two" in text
    assert not hit.exists()


@pytest.mark.needs_program("git")
def test_what_git_tells_of_a_submodule_runs_nothing_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, inner, hit = tmp_path / "a", tmp_path / "a" / "inner", tmp_path / "hit"
    inner.mkdir(parents=True)
    git(top, "init", "-q")
    for number in "12":
        (inner / "file").write_text(number, encoding="ascii")
        commit_all(inner, number)
        git(top, "update-index", "--add", "--cacheinfo", f"160000,{git(inner, 'rev-parse', 'HEAD').strip()},inner")
        git(top, "commit", "-q", "-m", number)
    git(inner, "config", "diff.external", f"touch {hit};")
    git(top, "config", "diff.submodule", "diff")
    monkeypatch.chdir(top)
    git(top, "log", "-p", "--no-ext-diff")
    assert hit.exists(), "git itself runs it"
    hit.unlink()
    assert [each.subject for each in commits(os.fspath(top), os.fspath(top))] == ["2", "1"]
    assert not hit.exists()


@pytest.mark.needs_program("git")
@pytest.mark.parametrize("folder", ["", "skills/[a]*"])
def test_git_tells_nothing_of_files_that_are_never_served(tmp_path: Path, folder: str) -> None:
    hidden = (
        ".env", "in/.env", ".d/x", "in/.d/x", "node_modules/x", "in/4913/x", "4913", "x~", "in/x.swp/x", "#x", "~$x",
    )  # fmt: skip
    shown = ("x.env", "in/x.d/x", "x#", "in/x~$x", "4913x", "SKILL.md")
    for name in (*hidden, *shown):
        assert any(map(is_ignored, name.split("/"))) is (name in hidden)
    plant(tmp_path / folder, dict.fromkeys((*hidden, *shown), "x\n"))
    commit_all(tmp_path, "x")
    (commit,) = commits(os.fspath(tmp_path / folder), os.fspath(tmp_path))
    told = {each.partition(" b/")[2].removeprefix(f"{folder}/") for each in commit.lines if each.startswith("diff ")}
    assert told == set(shown)


def _as_file(git: Path, private: Path) -> None:
    git.write_text(f"gitdir: {os.path.relpath(private, git.parent)}\n", encoding="ascii")


def _as_link(git: Path, private: Path) -> None:
    git.symlink_to(private)


def _with_its_objects(git: Path, private: Path) -> None:
    subprocess.run(["git", "init", "-q", git.parent], check=True, capture_output=True)
    head = (private / "HEAD").read_text(encoding="ascii").split()[-1]
    alternates = {"objects/info/alternates": f"{private}/objects\n", "HEAD": f"ref: {head}\n"}
    plant(git, alternates | {head: (private / head).read_bytes()})


def _with_its_refs(git: Path, private: Path) -> None:
    plant(git, {"HEAD": (private / "HEAD").read_bytes(), "commondir": f"{private}\n"})
    for each in ("objects", "refs"):
        (git / each).mkdir()


@pytest.mark.needs_program("git")
@pytest.mark.parametrize("lead", [_as_file, _as_link, _with_its_objects, _with_its_refs])
@pytest.mark.parametrize("where", ["", "tea"])
def test_no_file_of_a_root_leads_the_page_to_another_repository(
    tmp_path: Path, lead: Callable[[Path, Path], None], where: str
) -> None:
    private, root = plant(tmp_path / "private", {"notes": "secret\n"}), tmp_path / "tea"
    commit_all(private, "secret")
    skill = write_skill(root / where, name="tea")
    lead(skill / ".git", private / ".git")
    assert commits(os.fspath(skill), os.fspath(root)) == []
    with page_serving(root) as server:
        reply = get(server, "/ui/history/tea")
        assert reply.status == 200 and b"secret" not in reply.body


@pytest.mark.needs_program("git")
def test_administrators_see_the_commits_of_a_repository_that_is_fetched(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "acme.git")
    commit = upstream.commit({**BASE, **skill("alpha", "Other words.")}, parent=upstream.commit(BASE))
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    roots = f"roots = ['{upstream.url}']\ntoken-file = 'tokens'\n"
    (tmp_path / "c.toml").write_text(roots + grant("bob", "**") + grant("ann", "**", may=["admin"]))
    with page_serving("--config", tmp_path / "c.toml", "--cache-dir", tmp_path / "cache") as server:
        bobs, anns = (words(get(server, "/ui/history/skills/alpha", **bearing(each))) for each in (BOB, ANN))
        assert "Git commits" not in bobs and "Other words" not in bobs
        assert "Git commits" in anns and "+Other words." in anns and commit[:12] in anns
