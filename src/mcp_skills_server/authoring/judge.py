"""Judges that are programs of the user's: one run of the program answers one prompt.

The program reads a JSON object from stdin: `query`, `catalogue` (the text that a host shows its model) and `skills`
(`name`, `path` and `description` of each). It prints the names of the skills that it would load: a JSON array, an
object `{"skills": [...], "cost_usd": 0.001}`, or a name a line. Nothing printed means that it would load none.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from typing import Any, cast

from mcp_skills_server.authoring.programs import run_program, words_of_command
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Skill, printable


class CommandJudge:
    """Judges by a program.

    Args:
        command: the program with its arguments, in the quoting of a shell; no shell runs it.
        catalogue: the text that a host shows its model.
        skills: the skills that may be chosen.
        runs: how often each prompt is judged.
        concurrency: how many runs there may be at once.
        timeout_s: how long one run may take.
        answers: keeps answers between processes; None keeps none.

    Attributes:
        cost_usd: what the runs of this process have cost, as far as the program says so.
        asked: how many runs of the program there were; the other answers were kept ones.

    Raises:
        UsageError: there is no such program.
    """

    ranks = False

    def __init__(
        self,
        command: str,
        catalogue: str,
        skills: Sequence[Skill],
        *,
        runs: int = 3,
        concurrency: int = 4,
        timeout_s: float = 120,
        answers: Index | None = None,
    ) -> None:
        self.runs = runs
        self.concurrency = concurrency
        self.cost_usd = 0.0
        self.asked = 0
        self._words = words_of_command("--judge", command)
        self._timeout_s = timeout_s
        self._answers = answers
        self._lock = threading.Lock()
        self._paths = {name: each.path for each in skills for name in (each.name, each.path)}
        listed = [{"name": each.name, "path": each.path, "description": each.description} for each in skills]
        self._shown = {"catalogue": catalogue, "skills": listed}
        mark = hashlib.sha256(json.dumps([self._words, self._shown]).encode())
        for each in self._words:
            if os.path.isfile(each):  # a judge that was edited judges anew
                with open(each, "rb") as file:
                    mark.update(hashlib.file_digest(file, "sha256").digest())
        self._mark = mark.digest()

    def choose(self, query: str, run: int) -> Sequence[str]:
        """Return the paths of the skills that the program would load.

        Raises:
            UsageError: it failed, took too long, or printed something else.
        """
        key = hashlib.sha256(self._mark + json.dumps([query, run]).encode()).digest()
        kept = self._answers.answer(key) if self._answers is not None else None
        output = self._run(query) if kept is None else kept
        names, cost = _parsed(output)
        if kept is None:
            with self._lock:
                self.asked += 1
                self.cost_usd += cost
            if self._answers is not None:
                self._answers.keep_answer(key, output)
        return [self._paths[name] for name in names if name in self._paths]

    def _run(self, query: str) -> str:
        given = json.dumps({"query": query, **self._shown}).encode()
        return run_program(self._words, self._timeout_s, given).decode(errors="replace")


def _parsed(output: str) -> tuple[list[str], float]:
    """Return the names that a judge printed, and what the run cost."""
    text = output.strip()
    if not text.startswith(("[", "{")):
        return [line.strip() for line in text.splitlines() if line.strip()], 0.0
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the judge printed what is no JSON ({error}): {clipped(printable(text))}") from None
    cost = 0.0
    if isinstance(found, dict):
        fields = cast("dict[str, Any]", found)
        found, said = fields.get("skills"), fields.get("cost_usd")
        cost = float(said) if isinstance(said, (int, float)) else 0.0
    if not isinstance(found, list) or not all(isinstance(each, str) for each in cast("list[Any]", found)):
        raise UsageError(f"the judge printed no list of names: {clipped(printable(text))}")
    return cast("list[str]", found), cost
