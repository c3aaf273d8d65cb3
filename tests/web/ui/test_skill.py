"""The view of a skill and of its files over HTTP."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catalog.forest import write_files
from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.web.ui.pages.history import commits
from sources.git.conftest import BASE
from sources.git.remotes import Upstream, skill
from web.http_wire import Server, bearer_header, token_file, wait_until
from web.in_process import app_serving
from web.test_grants import ANN, BOB
from web.ui.serving import get, grant, page_serving, visible_text
from wire import write_skill

DEEP = "/".join("abcdefghijkl")
BODY = "# Refunds\n\nSee [limits](references/limits.md), ![scheme](scheme.png) and [far](https://example.org/x).\n"

# One black pixel.
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


def html_of(server: Server, path: str) -> str:
    reply = get(server, path)
    assert reply.status == 200, visible_text(reply)
    return reply.body.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skills with files of all kinds, which no test changes."""
    root = tmp_path_factory.mktemp("skills")
    refunds = write_skill(root / "refunds", body=BODY, references__limits_md="# Limits\n")
    kinds = write_skill(root / "kinds", notes_md="# Notes\n", plain_txt="x<y\u200bz", big_txt="x\n" * (1 << 20))
    for target in (refunds, kinds):
        (target / "scheme.png").write_bytes(PNG)
    code = 'def brew():\n    return "<b>" + 1  # \u200b\n'
    (kinds / "tool.py").write_text(code, encoding="utf-8")
    (kinds / "lines.txt").write_text("x\n" * 5_001, encoding="utf-8")
    write_skill(root / "odd", name="other")
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
    with app_serving(folder, "--ui") as started:
        yield started


def test_skill_view_shows_rendered_and_raw_text(server: Server, folder: Path) -> None:
    text = html_of(server, "/ui/skills/refunds")
    assert '<a href="/ui/files/refunds?file=references/limits.md">limits</a>' in text
    assert '<img src="/ui/raw/refunds?file=scheme.png" alt="scheme"' in text
    assert '<a href="https://example.org/x" rel="noopener noreferrer nofollow">far</a>' in text
    raw = re.search(r'<pre id="raw"[^>]*>(.*?)</pre>', html_of(server, "/ui/skills/refunds?text=raw"), re.DOTALL)
    assert raw
    assert html.unescape(raw[1]) == (folder / "refunds" / "SKILL.md").read_text(encoding="utf-8")
    digest = hashlib.sha256((folder / "refunds" / "SKILL.md").read_bytes()).hexdigest()
    assert f"sha256:{digest[:16]}" in html_of(server, "/ui/skills/refunds?tab=files")
    assert "Hosts that support skills" in visible_text(text) and str(folder) not in text
    assert "/mcp" in text and "Bearer" not in text


def test_file_view_depends_on_type_and_size(server: Server) -> None:
    assert "<h3>Notes</h3>" in html_of(server, "/ui/files/kinds?file=notes.md")
    plain = html_of(server, "/ui/files/kinds?file=plain.txt")
    assert 'x&lt;y<span class="hidden">U+200B</span>z' in plain and "It has 1 invisible characters" in visible_text(
        plain
    )
    assert 'src="/ui/raw/kinds?file=scheme.png"' in html_of(server, "/ui/files/kinds?file=scheme.png")
    for name in ("data.bin", "zero.bin"):
        assert "neither text nor a picture" in visible_text(html_of(server, f"/ui/files/kinds?file={name}"))
    for name, kind, content in (
        ("scheme.png", "image/png", PNG), ("data.bin", "application/octet-stream", bytes(range(256))),
    ):  # fmt: skip
        reply = get(server, f"/ui/raw/kinds?file={name}")
        assert (reply.headers["Content-Type"], reply.body) == (kind, content)
    assert "attachment" in (get(server, "/ui/raw/kinds?file=notes.md&keep=1").headers["Content-Disposition"] or "")
    assert "The file is too large to be shown" in visible_text(html_of(server, "/ui/files/kinds?file=big.txt"))
    assert len(get(server, "/ui/raw/kinds?file=big.txt").body) == 2 << 20
    text = html_of(server, "/ui/skills/many?tab=files")
    assert text.count('href="/ui/files/many?file=') == 501 and len(text) < 500_000
    text = html_of(server, "/ui/skills/long")
    assert "too long to be rendered" in visible_text(text) and len(text) < 500_000


def test_file_has_numbered_lines_to_link_to_and_colours(server: Server, folder: Path) -> None:
    page = html_of(server, "/ui/files/kinds?file=tool.py")
    assert '<span id="L2"><a href="#L2" data-line="2"' in page
    for token in ('"t-keyword">return', '"t-string">&#34;&lt;b&gt;', '"t-comment"># <span class="hidden">U+200B'):
        assert token in page
    content = re.search(r'<pre class="numbered"[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert content
    plain = html.unescape(re.sub(r"<[^>]*>", "", content[1])).replace("U+200B", "\u200b")
    assert plain == (folder / "kinds" / "tool.py").read_text(encoding="utf-8"), "what the button copies"
    assert 'id="L1"' not in html_of(server, "/ui/files/kinds?file=lines.txt"), "too many lines"
    assert 'href="/ui/files/odd?file=SKILL.md#L2"' in html_of(server, "/ui/skills/odd")


def test_view_of_a_skill_has_tabs(server: Server) -> None:
    for view, current in (
        ("skills/tree", "Text"), ("skills/tree?tab=files", "Files"), ("history/tree", "Versions"),
        ("skills/tree?tab=evaluation", "Evaluation"), ("files/tree?file=SKILL.md", "Files"),
        ("skills/tree?tab=x", "Text"),
    ):  # fmt: skip
        page = html_of(server, f"/ui/{view}")
        tabs = page.partition('aria-label="About this skill">')[2].partition("</nav>")[0]
        assert re.findall(r'aria-current="(?:page|true)">(\w+)<', tabs) == [current]
        assert re.findall(r">(\w+)</a>", tabs) == ["Text", "Files", "Versions", "Evaluation"]
        heading, _, rest = page.partition('aria-label="About this skill">')
        assert "Add to a host" in heading and "Path" in visible_text(heading) and "<h2" in rest


def test_arguments_are_filled_into_the_text(server: Server) -> None:
    text = html_of(server, "/ui/skills/weather")
    assert 'name="arg.city"' in text and 'value="today"' in text and 'id="filled"' not in text
    assert "Missing required argument" not in visible_text(text), "before the form is submitted"
    text = html_of(server, "/ui/skills/weather?fill=1&arg.city=%3Cb%3EBonn")
    assert "Weather of &lt;b&gt;Bonn on today {{other}}" in text
    assert "Missing required argument" in visible_text(html_of(server, "/ui/skills/weather?fill=1"))
    assert "has no argument" in visible_text(html_of(server, "/ui/skills/weather?fill=1&arg.city=x&arg.none=y"))


def test_visibility_follows_frontmatter(server: Server) -> None:
    for name, model, user in (("user", "no", "yes"), ("model", "yes", "no")):
        text = visible_text(html_of(server, f"/ui/skills/{name}"))
        assert f"{model} Models, through tools" in text and f"{user} Users, as a prompt" in text
        assert "yes Hosts that support skills" in text


def test_files_are_a_tree_labelled_with_whole_paths(server: Server) -> None:
    text = html_of(server, "/ui/skills/tree?tab=files")
    assert 'aria-label="x/y/one.md"><bdi>one.md</bdi>' in text
    assert "x / 2 files, 12 bytes two.md 6 bytes sha256:" in visible_text(text)
    assert "y / 1 file, 6 bytes one.md 6 bytes" in visible_text(text)
    assert "<bdi>i/j/k/l/z.md</bdi>" in text and text.count("<summary><bdi>") == 2 + 8
    whole = visible_text(html_of(server, "/ui/skills/tree"))
    assert "4 tokens If every other text file were read too" in whole
    assert get(server, f"/ui/files/tree?file={DEEP}/z.md").status == 200


def test_path_traversal_is_refused(skills: Path) -> None:
    (skills.parent / "secret.txt").write_text("secret", encoding="utf-8")
    with app_serving(skills, "--ui") as server:
        elsewhere = ("../secret.txt", "../../secret.txt", "/etc/passwd", "", ".", "SKILL.md/../../../secret.txt", "%00")
        for file in elsewhere:
            for view in ("files", "raw"):
                reply = get(server, f"/ui/{view}/refunds?file={file}")
                assert reply.status == 404 and b"secret" not in reply.body.replace(b"secret.txt", b""), file
        for path in ("../refunds", "%2e%2e/refunds", "b", "refunds/b", "%ff", "refunds%00"):
            assert get(server, f"/ui/skills/{path}").status == 404, path


def test_change_is_shown_as_diff_and_recorded_as_read(tmp_path: Path) -> None:
    directory, audit = write_skill(tmp_path / "a", body="# One\n\nfirst line\n"), tmp_path / "audit.jsonl"
    with app_serving(tmp_path, "--ui", "--audit-log", audit) as server:
        assert "It has not changed." in visible_text(html_of(server, "/ui/history/a"))
        assert audit.read_bytes() == b"", "nothing of the skill was sent"
        write_skill(directory, body="# One\n\nsecond <b>line\n", scripts__more_py="new\n")
        # Both files may be seen by one scan or by two, the script last.
        wait_until(lambda: "script new: scripts/more.py" in visible_text(html_of(server, "/ui/history/a")))
        text = html_of(server, "/ui/history/a")
        assert '<span class="minus">-<b>first </b>line' in text
        assert '<span class="plus">+<b>second &lt;b&gt;</b>line' in text
        text = visible_text(text)
        assert "file added: scripts/more.py" in text
        record = json.loads(audit.read_text(encoding="utf-8").splitlines()[-1])
        assert (record["event"], record["method"], record["skill"]) == ("read", "GET /ui/history", "a")
        assert "changed" in visible_text(html_of(server, "/ui/skills/a"))


def git(repository: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=Ann & Bob", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout


def commit_all(folder: Path, subject: str) -> None:
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", subject)


@pytest.mark.needs_program("git")
def test_git_history_is_shown_without_running_configured_programs(tmp_path: Path) -> None:
    marker, repository = tmp_path / "ran", tmp_path / "repo"
    for body, subject in (("# One\n", "first"), ("# Two\n", "second <script>")):
        write_skill(repository / "skills" / "a", body=body)
        commit_all(repository, subject)
    (repository / ".gitattributes").write_text("*.md diff=evil\n", encoding="utf-8")
    for key in (
        "diff.evil.textconv", "diff.evil.command", "diff.external", "gpg.program", "core.fsmonitor", "core.pager",
    ):  # fmt: skip
        git(repository, "config", key, f"touch {marker}")
    git(repository, "config", "log.showSignature", "true")
    with app_serving(repository / "skills", "--ui") as server:
        text = html_of(server, "/ui/history/a")
        assert "second &lt;script&gt;" in text and "Ann &amp; Bob" in text
        assert "-# <b>One</b>" in text and "+# <b>Two</b>" in text
    assert not marker.exists()


@pytest.mark.needs_program("git")
def test_git_history_of_submodule_runs_no_configured_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, inner, marker = tmp_path / "a", tmp_path / "a" / "inner", tmp_path / "ran"
    inner.mkdir(parents=True)
    git(top, "init", "-q")
    for number in "12":
        (inner / "file").write_text(number, encoding="ascii")
        commit_all(inner, number)
        git(top, "update-index", "--add", "--cacheinfo", f"160000,{git(inner, 'rev-parse', 'HEAD').strip()},inner")
        git(top, "commit", "-q", "-m", number)
    git(inner, "config", "diff.external", f"touch {marker};")
    git(top, "config", "diff.submodule", "diff")
    monkeypatch.chdir(top)
    git(top, "log", "-p", "--no-ext-diff")
    assert marker.exists(), "plain git runs it"
    marker.unlink()
    assert [commit.subject for commit in commits(os.fspath(top), os.fspath(top))] == ["2", "1"]
    assert not marker.exists()


@pytest.mark.needs_program("git")
@pytest.mark.parametrize("folder", ["", "skills/[a]*"])
def test_git_history_omits_files_that_are_never_served(tmp_path: Path, folder: str) -> None:
    hidden = (
        ".env", "in/.env", ".d/x", "in/.d/x", "node_modules/x", "in/4913/x", "4913", "x~", "in/x.swp/x", "#x", "~$x",
    )  # fmt: skip
    shown = ("x.env", "in/x.d/x", "x#", "in/x~$x", "4913x", "SKILL.md")
    for name in (*hidden, *shown):
        assert any(map(is_ignored, name.split("/"))) is (name in hidden)
    write_files(tmp_path / folder, dict.fromkeys((*hidden, *shown), "x\n"))
    commit_all(tmp_path, "x")
    (commit,) = commits(os.fspath(tmp_path / folder), os.fspath(tmp_path))
    diffs = [line for line in commit.lines if line.startswith("diff ")]
    assert {line.partition(" b/")[2].removeprefix(f"{folder}/") for line in diffs} == set(shown)


def link_by_gitdir_file(git: Path, private: Path) -> None:
    git.write_text(f"gitdir: {os.path.relpath(private, git.parent)}\n", encoding="ascii")


def link_by_symlink(git: Path, private: Path) -> None:
    git.symlink_to(private)


def link_by_alternates(git: Path, private: Path) -> None:
    subprocess.run(["git", "init", "-q", git.parent], check=True, capture_output=True)
    head = (private / "HEAD").read_text(encoding="ascii").split()[-1]
    alternates = {"objects/info/alternates": f"{private}/objects\n", "HEAD": f"ref: {head}\n"}
    write_files(git, alternates | {head: (private / head).read_bytes()})


def link_by_commondir(git: Path, private: Path) -> None:
    write_files(git, {"HEAD": (private / "HEAD").read_bytes(), "commondir": f"{private}\n"})
    (git / "objects").mkdir()
    (git / "refs").mkdir()


@pytest.mark.needs_program("git")
@pytest.mark.parametrize("link", [link_by_gitdir_file, link_by_symlink, link_by_alternates, link_by_commondir])
@pytest.mark.parametrize("subfolder", ["", "tea"])
def test_git_history_ignores_links_to_another_repository(
    tmp_path: Path, link: Callable[[Path, Path], None], subfolder: str
) -> None:
    private, root = write_files(tmp_path / "private", {"notes": "secret\n"}), tmp_path / "tea"
    commit_all(private, "secret")
    skill = write_skill(root / subfolder, name="tea")
    link(skill / ".git", private / ".git")
    assert commits(os.fspath(skill), os.fspath(root)) == []
    with app_serving(root, "--ui") as server:
        reply = get(server, "/ui/history/tea")
        assert reply.status == 200 and b"secret" not in reply.body


@pytest.mark.needs_program("git")
def test_commits_of_fetched_repository_are_shown_to_administrators_only(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "acme.git")
    commit = upstream.commit({**BASE, **skill("alpha", "Other words.")}, parent=upstream.commit(BASE))
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    roots = f"roots = ['{upstream.url}']\ntoken-file = 'tokens'\n"
    (tmp_path / "c.toml").write_text(roots + grant("bob", "**") + grant("ann", "**", may=["admin"]))
    with page_serving("--config", tmp_path / "c.toml", "--cache-dir", tmp_path / "cache") as server:
        for_bob, for_ann = (
            visible_text(get(server, "/ui/history/skills/alpha", **bearer_header(token))) for token in (BOB, ANN)
        )
        assert "Git commits" not in for_bob and "Other words" not in for_bob
        assert "Git commits" in for_ann and "+Other words." in for_ann and commit[:12] in for_ann


def test_texts_that_are_cut_say_so(tmp_path: Path) -> None:
    notes = "".join(f"  line {number:06}\n" for number in range(1_000))
    fields = f"x\narguments: [{{name: city}}]\nnotes: |\n{notes.rstrip()}"
    write_skill(tmp_path / "weather", description=fields, body="Weather of {{city}}\n" + "word\n" * 50_000)
    with app_serving(tmp_path, "--ui") as server:
        page = get(server, "/ui/skills/weather?fill=1&arg.city=Bonn").body.decode()
        assert "Weather of Bonn" in page and page.count("Only the beginning is shown.") == 1
        assert re.search(r"line 0006\d\d\n(line 0)?[\d.line ]*\.\.\.</pre>", page)


def test_skill_with_line_breaks_in_its_folders_is_shown(tmp_path: Path) -> None:
    write_skill(tmp_path / "a\nb" / "tea", x_md="text")
    write_skill(tmp_path / "last\n")
    with app_serving(tmp_path, "--ui") as server:
        for path in ("a%0Ab/tea", "last%0A"):
            assert f'href="/ui/skills/{path}"' in get(server, "/ui/").body.decode()
            assert get(server, f"/ui/skills/{path}").status == get(server, f"/ui/history/{path}").status == 200
        assert get(server, "/ui/files/a%0Ab/tea?file=x.md").status == 200
        gone = get(server, "/ui/no%0Asuch")
        assert gone.status == 404 and "There is no such page." in visible_text(gone)
