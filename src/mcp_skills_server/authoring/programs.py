"""External programs that an author names: judges of prompts and scanners of folders.

No shell runs them. One run of a judge answers one prompt. It reads a JSON object from stdin:
`query`, `catalogue` (the text that a host shows its model) and `skills` (`name`, `path` and
`description` of each). It prints the names of the skills that it would load: a JSON array, an
object `{"skills": [...], "cost_usd": 0.001}`, or one name a line. No output means no skill. A
scanner prints its findings in SARIF 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast
from urllib.parse import unquote, urlsplit

from mcp_skills_server.catalog.index import Index
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Problem, Severity, Skill, printable
from mcp_skills_server.model.decoding import load_json

_OUTPUT: Final = "{output}"
_SCAN_S: Final = 600.0
_MAX_OUTPUT: Final = 4 << 20
_MAX_COST_USD: Final = 1_000_000
_KIND: Final = "judge"
"""The kind of a judge's cached answers in the index."""
_OK_CODES: Final = (0, 1)
"""Exit codes of a successful scan; 1 means that there are findings."""
_LEVELS: Final[dict[str, Severity]] = {
    "error": "error",
    "warning": "warning",
    "note": "note",
    "none": "note",
}
_NO_FINDING: Final = ("pass", "notApplicable")
"""Kinds of SARIF results that tell that nothing was found."""


def _words_of_command(option: str, command: str) -> list[str]:
    """Return a command split into words, with the first one resolved to a program's path."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        reason = f"cannot be split into words ({error}); close the quotation mark"
        raise UsageError(f"{option} {command}: {reason}") from None
    program = shutil.which(words[0]) if words else None
    if program is None:
        hint = "install it, or give its path"
        raise UsageError(f"{option} {command}: there is no such program; {hint}")
    return [program, *words[1:]]


def _run(
    words: Sequence[str], timeout_s: float, given: bytes = b"", *, ok_codes: Collection[int] = (0,)
) -> bytes:
    """Run a program and return its stdout; `ok_codes` has the exit codes of success."""
    name = printable(os.path.basename(words[0]))
    with tempfile.TemporaryFile() as stdin:
        stdin.write(given)
        stdin.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603
                words, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise UsageError(f"{name} could not be started ({error.strerror})") from None
    end, out, err = time.monotonic() + timeout_s, bytearray(), bytearray()
    readers = [
        threading.Thread(target=_read, args=(process, stream, kept), daemon=True)
        for stream, kept in ((process.stdout, out), (process.stderr, err))
    ]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, end - time.monotonic()))
        code = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        code = None
    finally:
        process.kill()
        process.wait()
    if max(len(out), len(err)) > _MAX_OUTPUT:
        raise UsageError(f"{name} wrote more than {_MAX_OUTPUT:,} bytes")
    # another process that it started may hold its pipes open
    if code is None or any(reader.is_alive() for reader in readers):
        raise UsageError(f"{name} did not answer within {timeout_s:g} s")
    if code not in ok_codes:
        said = err.decode(errors="replace").strip() or "it printed nothing on stderr"
        line = clipped(printable(said.splitlines()[-1]))
        raise UsageError(f"{name} ended with {code}: {line}")
    return bytes(out)


def _read(process: subprocess.Popen[bytes], stream: IO[bytes], kept: bytearray) -> None:
    """Read a program's output, and kill the program if that is too long."""
    with stream:
        kept += stream.read(_MAX_OUTPUT + 1)
    if len(kept) > _MAX_OUTPUT:
        process.kill()


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

    ranks = False

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
        self._words = _words_of_command("--judge", command)
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
            output = _run(self._words, self._timeout_s, given)
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
        isinstance(word, str) for word in cast("list[Any]", answer)
    ):
        raise UsageError(f"the judge did not print a list of names: {clipped(printable(text))}")
    return cast("list[str]", answer), cost


def scan(command: str, folder: str, show: Callable[[str], str]) -> list[Problem]:
    """Run a scanner on a folder and return its findings.

    Args:
        command: the program with its arguments, in the quoting of a shell. The folder is appended;
            `{output}` stands for the SARIF file to write, without it stdout is read.
        folder: the folder, absolute.
        show: returns a path below the folder as the operator would type it.

    Raises:
        UsageError: the program does not exist or fails, or its output is not SARIF.
    """
    words = _words_of_command("--scanner", command)
    with tempfile.TemporaryDirectory(prefix="skills-scan-") as scratch:
        output = Path(scratch, "findings.sarif")
        words = [word.replace(_OUTPUT, str(output)) for word in words]
        raw = _run([*words, folder], _SCAN_S, ok_codes=_OK_CODES)
        try:
            if output.exists():
                raw, _ = read_regular(output, _MAX_OUTPUT)
                if len(raw) > _MAX_OUTPUT:
                    raise ValueError(f"it has more than {_MAX_OUTPUT:,} bytes")
            return list(_read_sarif(raw, folder, show))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"did not write valid SARIF 2.1.0 ({clipped(str(error))})"
            raise UsageError(f"{os.path.basename(words[0])} {reason}") from None


def _read_sarif(raw: bytes, folder: str, show: Callable[[str], str]) -> Iterator[Problem]:
    """Yield the findings of a SARIF log that are not suppressed there."""
    log: dict[str, Any] = load_json(raw)
    for run in cast("list[dict[str, Any]]", log["runs"]):
        driver = run["tool"]["driver"]
        name = str(driver["name"])
        known = cast("list[dict[str, Any]]", driver.get("rules") or [])
        rules: dict[Any, dict[str, Any]] = {rule["id"]: rule for rule in known}
        for result in cast("list[dict[str, Any]]", run.get("results") or []):
            if result.get("suppressions") or result.get("kind") in _NO_FINDING:
                continue
            level = _level(result, rules.get(result.get("ruleId")) or {})
            code = f"{name}/{result.get('ruleId') or 'finding'}"
            path, line = _place(result, folder)
            message = str(result["message"].get("text") or code)
            yield Problem(code, level, " ".join(message.split()), "", line, show(path))


def _level(result: dict[str, Any], rule: dict[str, Any]) -> Severity:
    """Return the severity of a finding: its own, or the default of its kind or rule."""
    level: Any = result.get("level")
    if not level and result.get("kind", "fail") != "fail":
        level = "none"
    default: dict[str, Any] = rule.get("defaultConfiguration") or {}
    level = level or default.get("level")
    return _LEVELS.get(str(level), "warning")


def _place(result: dict[str, Any], folder: str) -> tuple[str, int | None]:
    """Return the path in the folder and the line of a finding; "" for one without a place."""
    locations: list[dict[str, Any]] = result.get("locations") or []
    if not locations:
        return "", None
    physical: dict[str, Any] = locations[0].get("physicalLocation") or {}
    region: dict[str, Any] = physical.get("region") or {}
    artifact: dict[str, Any] = physical.get("artifactLocation") or {}
    line: Any = region.get("startLine")
    if not isinstance(line, int):
        line = None
    path = unquote(urlsplit(str(artifact.get("uri") or "")).path)
    for base in (folder, os.getcwd()):
        inside = os.path.relpath(os.path.join(base, path), folder)
        is_below = inside != "." and not inside.startswith("..")
        if is_below and os.path.lexists(os.path.join(folder, inside)):
            return inside.replace(os.sep, "/"), line
    return "", None
