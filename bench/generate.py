"""Generated folders of skills, with the same bytes for the same count every time."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, Final

_WORDS: Final = re.findall(
    r"\w+",
    "account answer archive balance batch bill branch budget build cancel change charge check claim client column "
    "credit currency customer date deposit dispute document draft entry error export field figure file form format "
    "import invoice item ledger letter limit line list match merge month note notice number order owner page payment "
    "period policy price query reason receipt record refund region report request result return review row rule "
    "sample schedule section settle sheet source state status store summary table target tax team term ticket total "
    "transfer update value vendor verify version week window year",
)


def skill_name(number: int) -> str:
    return f"skill-{number:05d}"


def generate(root: Path, count: int) -> None:
    """Write `count` skills of four files each below an empty `root`."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        _skill(root / skill_name(number), random.Random(number))


def _skill(directory: Path, dice: random.Random) -> None:
    (directory / "references").mkdir(parents=True)
    (directory / "scripts").mkdir()
    (directory / "SKILL.md").write_text(_manifest(directory.name, dice), encoding="utf-8")
    for name in ("rules", "examples"):
        text = f"# {name.title()}\n\n" + _paragraphs(dice, 2600)
        (directory / "references" / f"{name}.md").write_text(text, encoding="utf-8")
    script = f'"""Check {_sentence(dice)}"""\n\nimport sys\n\n' + "".join(
        f"{dice.choice(_WORDS)}_{line} = {dice.randrange(1000)}\n" for line in range(40)
    )
    (directory / "scripts" / "check.py").write_text(script + "sys.exit(0)\n", encoding="utf-8")


def _manifest(name: str, dice: random.Random) -> str:
    head = (
        f"---\nname: {name}\n"
        f"description: {_sentence(dice)} Use when {_sentence(dice).lower()}\n"
        "license: Apache-2.0\n"
        f"metadata:\n  author: bench\n  version: '1.{dice.randrange(30)}'\n  tags: {dice.choice(_WORDS)}\n---\n\n"
    )
    return (
        f"{head}# {name.replace('-', ' ').title()}\n\n{_paragraphs(dice, 1400)}"
        "Read [the rules](references/rules.md) first, then [the examples](references/examples.md).\n"
        "Run `python scripts/check.py` before you answer.\n"
    )


def _sentence(dice: random.Random) -> str:
    return " ".join(dice.choices(_WORDS, k=dice.randint(8, 14))).capitalize() + "."


def _paragraphs(dice: random.Random, size: int) -> str:
    out: list[str] = []
    length = 0
    while length < size:
        paragraph = " ".join(_sentence(dice) for _ in range(3))
        out.append(paragraph + "\n\n")
        length += len(paragraph) + 2
    return "".join(out)


def questions(size: int, most: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the requests of each row for a catalogue of this size: (method, params), of up to `most` skills each."""
    some = [skill_name(number) for number in range(0, size, max(1, size // most))][:most]
    return {
        "page": [("skills/list", {})],
        "get": [("skills/get", {"uri": f"skill://{each}/SKILL.md"}) for each in some],
        "read": [("resources/read", {"uri": f"skill://{each}/references/rules.md"}) for each in some],
    }


def tool_calls(size: int, count: int) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return calls of this server's tools by the key of their row: (method, params)."""
    dice = random.Random(size)
    loads = [{"name": "skills_load", "arguments": {"names": [skill_name(dice.randrange(size))]}} for _ in range(count)]
    searches = [
        {"name": "skills_search", "arguments": {"query": " ".join(dice.sample(_WORDS, 3))}} for _ in range(count)
    ]
    return {"load": [("tools/call", call) for call in loads], "search": [("tools/call", call) for call in searches]}
