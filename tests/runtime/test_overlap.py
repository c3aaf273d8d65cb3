"""How far skills say the same of themselves."""

from __future__ import annotations

from dialects import build
from mcp_skills_server.runtime.overlap import deciding_words, overlaps


def test_words_that_say_nothing_decide_nothing() -> None:
    skill = build.skill("pdf-forms", description="Fills in the forms of a PDF")
    assert deciding_words(skill) == {"pdf", "forms", "fills"}


def test_the_most_alike_come_first_and_nobody_is_compared_with_itself() -> None:
    one = build.skill("pdf", description="Fills PDF forms")
    same = build.skill("portable", description="Fills PDF forms with much more that only it does")
    other = build.skill("pears", description="Peels pears")
    found = overlaps(one, [other, one, same])
    assert [(each.other.path, each.share) for each in found] == [("portable", 1.0), ("pears", 0.0)]
    assert found[0].words == ["fills", "forms", "pdf"]


def test_skills_without_words_have_nothing_in_common() -> None:
    assert [
        each.share for each in overlaps(build.skill("---", description=""), [build.skill("-", description="")])
    ] == [0]
