"""The editor of the local page."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.model.digests import digest_of
from tables import each_row
from web.http_wire import Reply, bearer_header, token_file, wait_until
from web.in_process import app_serving, local_page
from web.test_grants import ANN, configure
from web.ui.serving import fetch, get, grant, text_of, visible_text
from wire import write_skill

TEXT = "---\nname: tea\ndescription: Brews tea when it is asked to.\n---\n\n# Tea\n"
HOSTILE = "</textarea><script>alert(1)</script>"


class Editor:
    """The form of one skill."""

    def __init__(self, page: tuple[str, str], path: str = "tea") -> None:
        self.origin, self.cookie = page
        self.url = f"{self.origin}/ui/edit/{quote(path)}"

    def opened(self) -> str:
        """Return the digest that the form has."""
        reply = fetch(self.url, self.cookie)
        assert reply.status == 200, visible_text(reply)
        digest = re.search(r'name="digest" value="([^"]+)"', text_of(reply))
        assert digest is not None
        return digest[1]

    def post(self, do: str, text: str, *, site: str = "", **more: str) -> Reply:
        """Send the form as a browser does, with CRLF line ends."""
        fields = {"do": do, "text": text.replace("\n", "\r\n"), **more}
        return fetch(self.url, self.cookie, "POST", fields, Origin=site or self.origin)

    def save(self, text: str) -> Reply:
        return self.post("save", text, digest=self.opened())


def test_text_is_checked_compared_and_saved(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "tea") / "SKILL.md"
    skill.chmod(0o640)
    before = skill.read_bytes()
    with local_page(tmp_path) as page:
        editor = Editor(page)
        shown = fetch(f"{editor.origin}/ui/skills/tea", editor.cookie)
        assert 'href="/ui/edit/tea">Edit</a>' in text_of(shown)
        digest = editor.opened()
        checked = editor.post("check", TEXT + "[more](gone.md)\n", digest=digest)
        words = visible_text(checked)
        assert checked.status == 200 and "SKILL.md :7 " in words and "gone.md" in words
        assert "description: &#34;Does a thing" in text_of(checked), "the difference"
        assert skill.read_bytes() == before, "a check writes nothing"
        saved = editor.post("save", TEXT, digest=digest)
        assert (saved.status, saved.headers["Location"]) == (303, "/ui/skills/tea")
        wait_until(lambda: "Brews tea" in visible_text(fetch(f"{editor.origin}/ui/skills/tea", editor.cookie)))
    assert skill.read_bytes() == TEXT.encode()
    assert stat.S_IMODE(skill.stat().st_mode) == 0o640
    assert [*skill.parent.iterdir()] == [skill], "no temporary file is left"


@each_row(("before", "typed", "after"), [
    (TEXT, TEXT + "More.\n", TEXT + "More.\n"),
    (TEXT.replace("\n", "\r\n"), TEXT + "More.\n", (TEXT + "More.\n").replace("\n", "\r\n")),
    ("\ufeff" + TEXT, "\ufeff" + TEXT + "\u00e9\U0001f375", "\ufeff" + TEXT + "\u00e9\U0001f375"),
    (TEXT + "end", TEXT + "end", TEXT + "end"),
])  # fmt: skip
def test_line_ends_and_characters_are_kept(tmp_path: Path, before: str, typed: str, after: str) -> None:
    skill = write_skill(tmp_path / "tea") / "SKILL.md"
    skill.write_bytes(before.encode())
    with local_page(tmp_path) as page:
        assert Editor(page).save(typed).status == 303
    assert skill.read_bytes() == after.encode()


def test_text_of_form_is_that_of_file_and_no_markup(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "tea", body=f"{HOSTILE}&amp;\n") / "SKILL.md"
    skill.write_bytes(b"\n" + skill.read_bytes())
    with local_page(tmp_path) as page:
        form = text_of(fetch(Editor(page).url, page[1]))
    assert "<script>alert" not in form
    assert ">\n\n---\n" in form, "a browser drops the first line end of a textarea"
    assert "&lt;/textarea&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;\n</textarea>" in form


def test_edit_of_changed_file_is_refused_with_both_texts(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "tea", body="# First\n") / "SKILL.md"
    with local_page(tmp_path) as page:
        editor = Editor(page)
        digest = editor.opened()
        write_skill(tmp_path / "tea", body="# Of another program\n")
        theirs = skill.read_bytes()
        refused = editor.post("save", TEXT, digest=digest)
        assert refused.status == 409 and "was changed since you opened it" in visible_text(refused)
        assert "# Of another program" in text_of(refused) and "Brews tea" in text_of(refused)
        assert skill.read_bytes() == theirs
        assert editor.post("save", TEXT).status == 409, "without a digest"
        assert editor.post("save", TEXT, digest=digest_of(theirs)).status == 303, "the form has the new digest"
        skill.unlink()
        gone = editor.post("save", TEXT, digest=digest_of(TEXT.encode()))
        assert gone.status == 400 and "Brews tea" in text_of(gone), "the text is not lost"
        assert not skill.exists()


def test_text_that_ends_serving_needs_confirmation(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "tea") / "SKILL.md"
    before = skill.read_bytes()
    with local_page(tmp_path) as page:
        editor = Editor(page)
        digest = editor.opened()
        broken = "---\nname: [\n---\n"
        refused = editor.post("save", broken, digest=digest)
        assert refused.status == 400 and "yaml-syntax" in visible_text(refused)
        token = re.search(r'name="confirmed" value="([^"]+)"', text_of(refused))
        assert token is not None and skill.read_bytes() == before
        other = "---\nname: {\n---\n"
        assert editor.post("save", other, digest=digest, confirmed=token[1]).status == 400, "for another text"
        assert editor.post("save", broken, digest=digest, confirmed=token[1]).status == 303
        assert skill.read_bytes() == broken.encode()
        after = fetch(f"{editor.origin}/ui/skills/tea", editor.cookie)
        assert after.status == 200 and "yaml-syntax" in visible_text(after), "it has no grace period"
        assert editor.post("save", TEXT, digest=digest_of(broken.encode())).status == 303
        assert skill.read_bytes() == TEXT.encode()


def test_edit_is_refused_cross_site_signed_out_and_too_large(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "tea") / "SKILL.md"
    before = skill.read_bytes()
    with local_page(tmp_path) as page:
        editor = Editor(page)
        digest = editor.opened()
        assert editor.post("save", TEXT, digest=digest, site="http://evil.example").status == 403
        forged = {"Origin": editor.origin, "Sec-Fetch-Site": "cross-site"}
        assert fetch(editor.url, editor.cookie, "POST", {"do": "save", "text": TEXT}, **forged).status == 403
        assert Editor((page[0], "")).post("save", TEXT, digest=digest).status == 403
        large = editor.post("save", TEXT + "x" * (1 << 20), digest=digest)
        assert large.status == 400 and "more than the limit of 1,048,576" in visible_text(large)
        assert len(large.body) > 1 << 20, "the text is not lost"
        assert editor.post("save", "\0" * (3 << 20), digest=digest).status == 400
        assert skill.read_bytes() == before
        lines = "\n" * (1 << 20)
        assert "more than the limit" not in visible_text(editor.post("check", lines, digest=digest))


def test_only_own_files_are_edited(tmp_path: Path) -> None:
    roots: list[Any] = [tmp_path / name for name in ("own", "copies")]
    own, far = roots[0], tmp_path / "far"
    for folder in (own / "mixed", own / "binary", own / "linked", far, roots[1] / "copied"):
        write_skill(folder)
    (own / "mixed" / "SKILL.md").write_bytes(TEXT.encode() + b"a\r\nb\n")
    (own / "binary" / "SKILL.md").write_bytes(TEXT.encode() + b"\xff\n")
    (own / "linked" / "SKILL.md").rename(own / "linked" / "real.md")
    (own / "linked" / "SKILL.md").symlink_to("real.md")
    (own / "far").symlink_to(far)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.md")}
    roots[1] = MirroredRoot(str(roots[1]), "https://example.com/skills")
    with local_page(*roots) as page:
        for path in ("mixed", "binary", "linked", "far", "copied", "none", "../far", "own/../far", "far/SKILL.md"):
            editor = Editor(page, path)
            assert fetch(editor.url, editor.cookie).status in (400, 404), path
            for digest in [*map(digest_of, before.values()), ""]:
                assert editor.post("save", TEXT, digest=digest).status == 400, path
        for path in ("far", "copied", "linked"):
            assert ">Edit</a>" not in text_of(fetch(f"{page[0]}/ui/skills/{path}", page[1]))
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.md")} == before


def test_skill_that_became_a_link_is_not_written(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    far = write_skill(tmp_path / "far", name="tea")
    before = (far / "SKILL.md").read_bytes()
    with local_page(tmp_path / "skills") as page:
        editor = Editor(page)
        digest = editor.opened()
        os.rename(tmp_path / "skills" / "tea", tmp_path / "old")
        (tmp_path / "skills" / "tea").symlink_to(far)
        assert editor.post("save", TEXT, digest=digest).status == 400
    assert (far / "SKILL.md").read_bytes() == before


def test_root_that_is_a_skill_and_skill_with_nested_one_are_edited(tmp_path: Path) -> None:
    alone = write_skill(tmp_path / "alone")
    outer = write_skill(tmp_path / "skills" / "outer", name="outer")
    inner = write_skill(outer / "inner")
    with local_page(alone, tmp_path / "skills") as page:
        for path, folder in (("alone", alone), ("outer", outer), ("outer/inner", inner)):
            text = TEXT.replace("tea", folder.name)
            checked = Editor(page, path).post("check", text, digest=Editor(page, path).opened())
            assert "The skill is served with this text. No problems." in visible_text(checked), path
            assert Editor(page, path).save(text).status == 303, path
            assert (folder / "SKILL.md").read_text() == text, path


def test_server_has_neither_editor_nor_upload(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "skills" / "tea") / "SKILL.md"
    before = skill.read_bytes()
    token_file(tmp_path, f"ann={ANN}")
    with app_serving("--config", configure(tmp_path, grant("ann", "**", may=["admin"])), "--ui") as server:
        headers = bearer_header(ANN) | {"Sec-Fetch-Site": "same-origin"}
        assert ">Edit</a>" not in text_of(get(server, "/ui/skills/tea", **bearer_header(ANN)))
        assert "/ui/archive" not in text_of(get(server, "/ui/", **bearer_header(ANN)))
        for path, status in (("/ui/edit/tea", 400), ("/ui/archive", 404)):
            assert get(server, path, **bearer_header(ANN)).status == status
        body = f"do=save&text=x&digest={quote(digest_of(before))}".encode()
        for path in ("/ui/edit/tea", "/ui/archive"):
            assert server.send("POST", path, body, headers).status == 405
    assert skill.read_bytes() == before
