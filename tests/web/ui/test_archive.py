"""Archives that the local page looks at."""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

from mcp_skills_server.format.archive import pack
from tables import each_row
from web.http_wire import Reply
from web.in_process import APPS, local_page
from web.ui.serving import fetch, text_of, visible_text
from wire import write_skill

MANIFEST = (
    b"---\nname: tea\ndescription: Brews tea when it is asked to.\n---\n\n# Tea\n\n[more](gone.md) [run](run.sh)\n"
)
HOSTILE = b"<script>alert(1)</script>"


def upload(page: tuple[str, str], raw: bytes, name: str = "tea.skill", *, site: str = "", kind: str = "") -> Reply:
    """Send a file as a browser does."""
    origin, cookie = page
    head = f'--made-up\r\nContent-Disposition: form-data; name="archive"; filename="{name}"\r\n'
    body = head.encode() + b"Content-Type: application/zip\r\n\r\n" + raw + b"\r\n--made-up--\r\n"
    headers = {"Origin": site or origin, "Content-Type": kind or "multipart/form-data; boundary=made-up"}
    if cookie:
        headers["Cookie"] = cookie
    return APPS[origin].send("POST", "/ui/archive", body, headers)


def zipped(**files: bytes) -> bytes:
    """Return a compressed zip; `a__b_md=` is the file a/b.md."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return raw.getvalue()


def named(path: str, content: bytes = MANIFEST) -> bytes:
    """Return a zip with one file of any name."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(path, content)
    return raw.getvalue()


def linked() -> bytes:
    """Return a tar with a symbolic link to a file of the system."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        member = tarfile.TarInfo("tea/SKILL.md")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    return raw.getvalue()


def test_archive_is_shown_and_neither_kept_nor_served(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea", gone_md="served")
    before = sorted(tmp_path.rglob("*"))
    raw = zipped(SKILL_md=MANIFEST + HOSTILE, run_sh=b"#!/bin/sh\n", node_modules__x_js=b"1")
    with local_page(tmp_path / "skills") as page:
        assert 'href="/ui/archive"' in text_of(fetch(f"{page[0]}/ui/", page[1]))
        assert 'type="file"' in text_of(fetch(f"{page[0]}/ui/archive", page[1]))
        reply = upload(page, raw, "other.skill")
        words, markup = visible_text(reply), text_of(reply)
        assert reply.status == 200 and "Brews tea when it is asked to." in words
        assert "It would be served from tea" in words, "a skill at the top has its own name"
        assert "reference-missing SKILL.md :8 the body refers to 'gone.md'" in words
        assert "run.sh 10 bytes" in words and "<script>alert" not in markup
        assert "/ui/files/tea" not in markup, "no link leads to the served skill of the same name"
        assert "Brews tea" not in visible_text(fetch(f"{page[0]}/ui/", page[1]))
    assert sorted(tmp_path.rglob("*")) == before
    assert not [*Path(tempfile.gettempdir()).glob("mcp-skills-look-*/tea")]


def test_archive_of_several_skills_and_packed_one(tmp_path: Path) -> None:
    write_skill(tmp_path / "own")
    with local_page(tmp_path) as page:
        several = {f"s{number}__SKILL_md": MANIFEST.replace(b"tea", b"s%d" % number) for number in range(22)}
        words = visible_text(upload(page, zipped(**several)))
        assert "20 of 22 skills are shown" in words and "It would be served from s1 " in words
        words = visible_text(upload(page, pack({"SKILL.md": (MANIFEST, False)})[1], "tea.tar.gz"))
        assert "It would be served from tea" in words
        broken = visible_text(upload(page, named("tea/SKILL.md", b"no frontmatter")))
        assert "It would be not served from tea" in broken or "It would be not listed from tea" in broken


@each_row(("raw", "words"), [
    (named("../SKILL.md"), "leads out of the skill"),
    (named("/etc/SKILL.md"), "is absolute"),
    (named("tea/..\\SKILL.md"), "backslash"),
    (named("tea/README.md"), "it has no SKILL.md"),
    (linked(), "link"),
    (zipped(tea__SKILL_md=b"\0" * (45 << 20)), "refused"),
    (b"plain text", "its content is none of"),
    (b"", "its content is none of"),
])  # fmt: skip
def test_hostile_archive_is_refused(tmp_path: Path, raw: bytes, words: str) -> None:
    write_skill(tmp_path / "own")
    before = sorted(tmp_path.rglob("*"))
    with local_page(tmp_path) as page:
        reply = upload(page, raw, f"{HOSTILE.decode()}.zip")
        assert reply.status == 400 and words in visible_text(reply), visible_text(reply)
        assert "<script>alert" not in text_of(reply)
    assert sorted(tmp_path.rglob("*")) == before


def test_upload_is_refused_cross_site_signed_out_malformed_and_too_large(tmp_path: Path) -> None:
    write_skill(tmp_path / "own")
    raw = named("tea/SKILL.md")
    with local_page(tmp_path) as page:
        assert upload(page, raw, site="http://evil.example").status == 403
        assert upload((page[0], ""), raw).status == 403
        assert upload(page, raw, kind="text/plain").status == 400
        assert "malformed" in visible_text(upload(page, raw, kind="multipart/form-data; boundary=other"))
        assert upload(page, raw, kind="multipart/form-data").status == 400
        assert "too long" in visible_text(upload(page, b"\0" * (51 << 20)))
        assert upload(page, raw).status == 200
