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
from collections.abc import Sequence
from typing import Any, Final, cast

from mcp_skills_server.authoring.programs import parse_command, run_program
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Skill, printable
from mcp_skills_server.model.decoding import load_json

_MAX_COST_USD: Final = 1_000_000
_KIND: Final = "judge"
"""The kind of a judge's cached answers in the index."""


class CommandJudge:
    """A judge that runs an external program, `runs` times for each prompt.

    Args:
        command: the program with its arguments, in the quoting of a shell.
        catalogue: the text that a host shows its model.
        runs, concurrency, timeout_s: runs for each prompt, runs at once, limit of one run.
        answers: the cache of answers between processes.

    Attributes:
        cost_usd: the cost of the runs of this process, as far as the program reports it.
        program_runs: the number of runs of the program; other answers came from the cache.

    Raises:
        UsageError: the program does not exist.
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
        self.runs = runs
        self.concurrency = concurrency
        self.cost_usd = 0.0
        self.program_runs = 0
        self._words = parse_command("--judge", command)
        self._timeout_s = timeout_s
        self._answers = answers
        self._lock = threading.Lock()
        paths = {skill.path: skill.path for skill in skills}
        self._paths = {skill.name: skill.path for skill in skills} | paths
        listed = [
            {"name": skill.name, "path": skill.path, "description": skill.description}
            for skill in skills
        ]
        self._shown = {"catalogue": catalogue, "skills": listed}
        mark = hashlib.sha256(json.dumps([self._words, self._shown]).encode())
        for word in self._words:
            if os.path.isfile(word):  # an edited program invalidates its cached answers
                with open(word, "rb") as file:
                    mark.update(hashlib.file_digest(file, "sha256").digest())
        self._mark = mark.digest()

    def choose(self, query: str, run: int) -> Sequence[str]:
        """Return the paths of the skills that the program would load.

        Raises:
            UsageError: the program fails, times out, or prints something else.
        """
        key = hashlib.sha256(self._mark + json.dumps([query, run]).encode()).digest()
        output = self._answers.memos(_KIND, [key]).get(key)
        is_new = output is None
        if output is None:
            given = json.dumps({"query": query, **self._shown}).encode()
            output = run_program(self._words, self._timeout_s, given)
        names, cost = _parsed(output.decode(errors="replace"))
        if is_new:
            with self._lock:
                self.program_runs += 1
                self.cost_usd += cost
            self._answers.save_memos(_KIND, {key: output})
        return [self._paths[name] for name in names if name in self._paths]


def _parsed(output: str) -> tuple[list[str], float]:
    """Return the names that a judge printed, and what the run cost."""
    text = output.strip()
    if not text.startswith(("[", "{")):
        return [line.strip() for line in text.splitlines() if line.strip()], 0.0
    try:
        answer: Any = load_json(text)
    except ValueError as error:
        shown = clipped(printable(text))
        raise UsageError(f"the judge printed invalid JSON ({error}): {shown}") from None
    cost = 0.0
    if isinstance(answer, dict):
        fields = cast("dict[str, Any]", answer)
        answer, said = fields.get("skills"), fields.get("cost_usd")
        if isinstance(said, (int, float)):
            if not 0 <= said <= _MAX_COST_USD:  # nor is NaN
                text = f"the judge's cost_usd is no number from 0 to {_MAX_COST_USD:,}"
                raise UsageError(f"{text}: {clipped(str(said))}")
            cost = float(said)
    if not isinstance(answer, list) or not all(
        isinstance(name, str) for name in cast("list[Any]", answer)
    ):
        raise UsageError(f"the judge did not print a list of names: {clipped(printable(text))}")
    return cast("list[str]", answer), cost
