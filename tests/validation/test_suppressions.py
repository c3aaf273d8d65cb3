"""Comments that suppress a finding: which there are in a text, and which finding each is about."""

from __future__ import annotations

from mcp_skills_server.codes import problem
from mcp_skills_server.validation.suppressions import Suppression, find, suppressed
from tables import each_row


@each_row(
    ("text", "found"),
    [
        ("Nothing.\n", []),
        ("# skill-check: ignore[secret]\n", [Suppression("secret", 1, "")]),
        (
            "a\n<!-- skill-check: ignore[secret] because it is made up -->\n",
            [Suppression("secret", 2, "it is made up")],
        ),
        ("# skill-check: ignore[Secret] because of this\n", []),
    ],
)
def test_suppressions_are_found_with_their_lines_and_reasons(text: str, found: list[Suppression]) -> None:
    assert find(text) == found


@each_row(("code", "line", "is_suppressed"), [
    ("secret", 5, True), ("secret", 6, True), ("secret", 7, False), ("secret", 4, False), ("secret", None, True),
    ("hooks", 5, False),
])  # fmt: skip
def test_a_comment_is_about_its_own_line_and_the_next(code: str, line: int | None, is_suppressed: bool) -> None:
    comment = Suppression("secret", 5, "it is made up")
    assert suppressed(problem(code, "", line), [comment]) == (comment if is_suppressed else None)
