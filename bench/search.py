"""`python -m bench.search [FOLDER]...`: measure how often search ranks a right skill first, and in the first five.

The catalogue is the made-up skills of `questions/`, the fixtures, and the folders. Questions about other skills are
left out. Skills are split into two halves by their names: one half to tune search on, one half to validate.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import View
from mcp_skills_server.runtime.search import Search

HERE = Path(__file__).parent
QUESTIONS = HERE / "questions"
FIXTURES = HERE.parent / "fixtures" / "skills"
SHOWN = 10


@dataclass
class Tally:
    """Results for queries of one kind about one half of the skills."""

    asked: int = 0
    first: int = 0
    among_five: int = 0
    reciprocal: float = 0.0

    def count(self, place: int | None) -> None:
        """Count a result by the rank of the first right skill, from 0."""
        self.asked += 1
        if place is not None:
            self.first += place == 0
            self.among_five += place < 5
            self.reciprocal += 1 / (place + 1)

    def __str__(self) -> str:
        first, five, mrr = (each / self.asked for each in (self.first, self.among_five, self.reciprocal))
        return f"{self.asked:5} questions   hit@1 {first:.2f}   hit@5 {five:.2f}   MRR {mrr:.2f}"


def rows(name: str) -> Iterator[list[str]]:
    for line in (QUESTIONS / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            yield line.split("\t")


def write_made_up_skills(folder: Path) -> None:
    for name, description, *_ in rows("made_up.tsv"):
        place = folder / name
        place.mkdir()
        text = f"---\nname: {name}\ndescription: '{description.replace(chr(39), chr(39) * 2)}'\n---\n\n# {name}\n"
        (place / "SKILL.md").write_text(text, encoding="utf-8")


def with_typo(word: str, chance: random.Random) -> str:
    if len(word) < 5:
        return word
    at = chance.randrange(1, len(word) - 2)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def questions(existing: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield kind, skill and text of each query about an existing skill."""
    chance = random.Random(7)
    for row in (*rows("made_up.tsv"), *rows("collections.tsv")):
        name, sentence, other = row[0], row[-2], row[-1]
        if name not in existing:
            continue
        yield "sentence", name, sentence
        if other != "-":
            yield "other language", name, other.partition(":")[2]
        words = name.split("-")
        yield "keyword", name, " ".join(words[:3])
        yield "typo", name, " ".join(with_typo(word, chance) for word in words)


def main(folders: list[str]) -> None:
    same: defaultdict[str, set[str]] = defaultdict(set)
    for line in (QUESTIONS / "same.txt").read_text(encoding="utf-8").splitlines():
        for name in line.split() if not line.startswith("#") else ():
            same[name] |= {*line.split()}
    with tempfile.TemporaryDirectory() as made:
        write_made_up_skills(Path(made))
        registry = Registry([made, str(FIXTURES), *folders])
        registry.load()
    skills = registry.snapshot.skills
    search = Search(View(registry))
    begun = process_time()
    search.find("anything", 1, lambda _: True)
    built = process_time() - begun
    tallies: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)
    took: list[float] = []
    for kind, name, text in questions({skill.name for skill in skills.values()}):
        right = {name} | (same[name] if kind in {"sentence", "other language"} else set[str]())
        begun = process_time()
        found = [skill.name for skill in search.find(text, SHOWN, lambda _: True)]
        took.append(process_time() - begun)
        half = "held" if sum(map(ord, name)) % 2 else "tuned"
        tallies[half, kind].count(next((place for place, each in enumerate(found) if each in right), None))
    for (half, kind), tally in sorted(tallies.items()):
        print(f"{half:6} {kind:15} {tally}")
    took.sort()
    print(f"{len(skills)} skills: indexed in {1000 * built / len(skills):.2f} ms each; CPU of a question: ", end="")
    print(f"p50 {1000 * took[len(took) // 2]:.1f} ms, p99 {1000 * took[len(took) * 99 // 100]:.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
