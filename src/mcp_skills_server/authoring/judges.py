"""A judge by an external program, which chooses the skills that a prompt calls for.

One run answers one prompt. The program reads a JSON object from stdin: `query`, `catalogue` (the
text that a host shows its model) and `skills` (`name`, `path` and `description` of each). It prints
the names of the skills that it would load: a JSON array, an object `{"skills": [...], "cost_usd":
0.001}`, or one name a line. No output means no skill.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from mcp_skills_server.authoring.programs import parse_command, run_program
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Skill, printable
from mcp_skills_server.model.decoding import load_json

_MAX_COST_USD: Final = 1_000_000
_T = TypeVar("_T")


class JudgeProgram:
    """An external program that answers questions; its answers are cached by `kind`.

    Attributes:
        cost_usd: the cost of the runs of this process, as far as the program reports it.
        program_runs: the number of runs of the program; other answers came from the cache.
        uncached: the number of answers that could not be written into the cache.

    Raises:
        UsageError: the program does not exist.
    """

    def __init__(self, command: str, kind: str, timeout_s: float, answers: Index) -> None:
        self.cost_usd = 0.0
        self.program_runs = 0
        self.uncached = 0
        self._words = parse_command("--judge", command)
        self._kind = kind
        self._timeout_s = timeout_s
        self._answers = answers
        self._lock = threading.Lock()
        mark = hashlib.sha256(json.dumps(self._words).encode())
        for word in self._words:
            if os.path.isfile(word):  # an edited program invalidates its cached answers
                with open(word, "rb") as file:
                    mark.update(hashlib.file_digest(file, "sha256").digest())
        self._mark = mark.digest()

    def key(self, question: bytes, run: int) -> bytes:
        """Return the key of an answer in the cache."""
        return hashlib.sha256(self._mark + b"%d:" % run + question).digest()

    def known(self, keys: Iterable[bytes]) -> Mapping[bytes, bytes]:
        """Return the cached answers of these keys."""
        return self._answers.memos(self._kind, keys)

    def ask(self, question: bytes, run: int, parse: Callable[[str], tuple[_T, float]]) -> _T:
        """Return an answer, which `parse` returns with its cost; run the program if it is new.

        Raises:
            UsageError: the program fails or times out, or `parse` refuses its output.
        """
        key = self.key(question, run)
        known = self.known([key]).get(key)
        if known is not None:
            return parse(known.decode(errors="replace"))[0]
        output = run_program(self._words, self._timeout_s, question)
        with self._lock:
            self.program_runs += 1
        answer, cost = parse(output.decode(errors="replace"))
        with self._lock:
            self.cost_usd += cost
            self.uncached += not self._answers.save_memos(self._kind, {key: output})
        return answer


class CommandJudge(JudgeProgram):
    """A judge of triggers by a program, which runs `runs` times for each prompt.

    `catalogue` is the text that a host shows its model, `concurrency` the runs at once.
    """

    ranks = False  # every choice triggers, not only the first

    def __init__(
        self,
        command: str,
        catalogue: str,
        skills: Sequence[Skill],
        *,
        runs: int,
        concurrency: int,
        timeout_s: float,
        answers: Index,
    ) -> None:
        super().__init__(command, "judge", timeout_s, answers)
        self.runs = runs
        self.concurrency = concurrency
        paths = {skill.path: skill.path for skill in skills}
        self._paths = {skill.name: skill.path for skill in skills} | paths
        listed = [
            {"name": skill.name, "path": skill.path, "description": skill.description}
            for skill in skills
        ]
        self._shown = {"catalogue": catalogue, "skills": listed}

    def choose(self, query: str, run: int) -> Sequence[str]:
        """Return the paths of the skills that the program would load.

        Raises:
            UsageError: the program fails, times out, or prints something else.
        """
        names = self.ask(json.dumps({"query": query, **self._shown}).encode(), run, _parsed)
        return [self._paths[name] for name in names if name in self._paths]


def reported_cost(fields: Mapping[str, Any]) -> float:
    """Return the `cost_usd` of an answer, 0 without one; raise UsageError if it is no cost."""
    said = fields.get("cost_usd")
    if not isinstance(said, (int, float)):
        return 0.0
    if not 0 <= said <= _MAX_COST_USD:  # nor is NaN
        text = f"the judge's cost_usd is no number from 0 to {_MAX_COST_USD:,}"
        raise UsageError(f"{text}: {clipped(str(said))}")
    return float(said)


def decoded_answer(text: str) -> Any:
    """Return the JSON that a judge printed; raise UsageError if it is invalid."""
    try:
        return load_json(text)
    except ValueError as error:
        shown = clipped(printable(text)) or "nothing"
        raise UsageError(f"the judge printed invalid JSON ({error}): {shown}") from None


def _parsed(output: str) -> tuple[list[str], float]:
    """Return the names that a judge printed, and what the run cost."""
    text = output.strip()
    if not text.startswith(("[", "{")):
        return [line.strip() for line in text.splitlines() if line.strip()], 0.0
    answer, cost = decoded_answer(text), 0.0
    if isinstance(answer, dict):
        fields = cast("dict[str, Any]", answer)
        answer, cost = fields.get("skills"), reported_cost(fields)
    if not isinstance(answer, list) or not all(
        isinstance(name, str) for name in cast("list[Any]", answer)
    ):
        raise UsageError(f"the judge did not print a list of names: {clipped(printable(text))}")
    return cast("list[str]", answer), cost
