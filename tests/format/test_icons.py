"""Where an icon may come from."""

from __future__ import annotations

from dialects.build import skill, snapshot
from mcp_skills_server.dialects import prompts, sep2076
from mcp_skills_server.format import fields
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Standing
from tables import each_row


@each_row(("source", "fine"), [
    ("https://example.com/i.png", True), ("HTTP://example.com/i.png", True), ("data:image/png;base64,AAAA", True),
    ("skill://a/assets/icon.png", True), ("assets/icon.png", True), ("javascript:alert(1)", False),
    ("JavaScript:alert(1)", False), ("java\tscript:alert(1)", False), (" \njavascript:alert(1)", False),
    ("\x01javascript:alert(1)", False), ("java\u200bscript:alert(1)", False), ("file:///etc/passwd", False),
    ("data:text/html,<script>", False), ("vbscript:x", False), ("blob:https://example.com/x", False),
    ("ht\ttps://example.com/i.png", False),
])  # fmt: skip
def test_an_icon_comes_from_where_a_page_may_take_it(source: str, fine: bool):
    """What does not is no icon in an entry or a prompt (11.19)."""
    assert fields.is_allowed_icon(source) is fine
    each = skill("sound-skill", icons=[{"src": source}])
    entry = sep2076.entry(each, snapshot(each), Served(), Standing.VALID)
    assert ("icons" in entry) is fine
    shown = "icons" in prompts.descriptor(each, {**entry, "icons": [{"src": source}]})
    assert shown or not (fine and source.lower().startswith(("http", "data")))
    assert fine or not shown
