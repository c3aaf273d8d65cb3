"""Lift: what a skill changes in a model's outputs, by the assertions of its `evals/evals.json`.

One run of a program does a prompt, with a version of the skill or without it, and grades the
output. It reads a JSON object from stdin: `prompt`, `skill` (its files, or null),
`inputs`, `expected_output` and `expectations`. It prints skill-creator's grading, `{"expectations":
[{"text": ..., "passed": true, "evidence": ...}]}`, and may add `timing`, `model` and `cost_usd`.
"""

from __future__ import annotations

import base64
import json
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from mcp_skills_server.authoring.evaluation import read_cases
from mcp_skills_server.authoring.judges import JudgeProgram, decoded_answer, reported_cost
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.format.fields import items, mapping
from mcp_skills_server.format.ignored import ignored
from mcp_skills_server.model import EVALS, SKILL_MD, Json, printable
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.provenance.difference import Files
from mcp_skills_server.sources.git.history import pathspecs, read_log, working_copy
from mcp_skills_server.sources.git.program import Git, GitFailedError
from mcp_skills_server.sources.source import SourceError

WITH: Final = "with_skill"
WITHOUT: Final = "without_skill"
OLD: Final = "old_skill"
_SHOWN: Final = {WITHOUT: "no skill", OLD: "the last version"}
_KIND: Final = "lift"
_Z: Final = statistics.NormalDist().inv_cdf(0.975)
"""The quantile of the normal distribution for intervals of 95 %."""
_DELTAS: Final = {"pass_rate": "+.2f", "time_seconds": "+.1f", "tokens": "+.0f"}
"""The figures of a benchmark, and how their differences are written."""
_MAX_FIGURE: Final = 1e12
_MAX_BYTES: Final = 16 << 20
_GIT_S: Final = 20.0


class OutputEval(NamedTuple):
    """A prompt whose output is graded: its id and name, what the program is asked, and inputs."""

    named: Mapping[str, Json]
    question: Mapping[str, Json]
    inputs: Sequence[str]  # paths of files in the skill


class Lift(NamedTuple):
    """The difference of two shares of passed assertions, its 95 % interval, and the verdict."""

    difference: float
    low: float
    high: float
    verdict: str  # "helps" or "harms" where the interval excludes zero, or else "not shown"


def read_evals(raw: bytes, where: str, here: Collection[str]) -> list[OutputEval]:
    """Return the evals of an `evals.json` that have assertions; `here` has the skill's paths.

    Raises:
        UsageError: the file has another form. The message says what is wrong, and where.
    """
    cases = read_cases(raw, where)
    decoded: Any = load_json(raw)
    if not isinstance(decoded, dict):
        raise UsageError(f'{where}: is a trigger set; write {{"evals": [...]}}')
    evals: list[OutputEval] = []
    known: set[str] = set()
    for at, entry in enumerate(cast("dict[str, Any]", decoded)["evals"]):
        of_entry = f"{where}: evals[{at}]"
        texts = [*_listed(entry, "assertions", of_entry), *_listed(entry, "expectations", of_entry)]
        if texts:
            given = entry.get("id")
            eval_id = given if isinstance(given, (int, str)) else at + 1
            named = {"eval_id": eval_id, "eval_name": str(entry.get("name") or f"eval-{eval_id}")}
            question: dict[str, Json] = {
                "prompt": cases[at].query,
                "expected_output": entry.get("expected_output"),
                "expectations": [*dict.fromkeys(texts)],
            }
            inputs = _listed(entry, "files", of_entry)
            for path in inputs:
                if path not in here:
                    fault = f"the file {clipped(printable(path))}, which is not in the skill"
                    raise UsageError(f"{of_entry} needs {fault}")
            marks = {json.dumps(eval_id), json.dumps([question, inputs])}
            if marks & known:
                raise UsageError(f"{of_entry} repeats an id or a question; --runs repeats them")
            known |= marks
            evals.append(OutputEval(named, question, inputs))
    return evals


def _listed(entry: Mapping[str, Any], key: str, where: str) -> list[str]:
    """Return the texts of a list; an item may be an object with `text`."""
    given: Any = entry.get(key) or []
    texts: list[str] = []
    for item in cast("list[Any]", given if isinstance(given, list) else [given]):
        value = cast("dict[str, Any]", item).get("text") if isinstance(item, dict) else item
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{where}: {key!r} is no list of texts")
        texts.append(value.strip())
    return texts


def question_of(of_eval: OutputEval, skill: Files | None, here: Files) -> bytes:
    """Return what the program reads; `here` has the eval's inputs."""
    files = None if skill is None else [_encoded(path, raw) for path, raw in _graded(skill)]
    inputs = [_encoded(path, here[path][0]) for path in of_eval.inputs]
    return json.dumps({**of_eval.question, "skill": files, "inputs": inputs}).encode()


def _graded(files: Files) -> list[tuple[str, bytes]]:
    """Return the files of a version in order, without the evals, which have the answers."""
    return [(path, files[path][0]) for path in sorted(files) if not path.startswith(EVALS)]


def _encoded(path: str, raw: bytes) -> dict[str, Json]:
    try:
        return {"path": path, "text": raw.decode()}
    except UnicodeDecodeError:
        return {"path": path, "blob": base64.b64encode(raw).decode()}


class OutputJudge(JudgeProgram):
    """A program that does a prompt and grades its output."""

    def grade(
        self, asked: Sequence[tuple[bytes, int]], concurrency: int, max_calls: int
    ) -> list[dict[str, Any]]:
        """Return the `result`, `expectations` and `model` of each question and run.

        UsageError is raised before the first run if more than `max_calls` are not cached.
        """
        unique = {self.key(question, run): (question, run) for question, run in asked}
        new = len(unique.keys() - self.known(unique).keys())
        if new > max_calls:
            hint = "raise it, or lower --runs"
            raise UsageError(f"{new:,} runs are more than --max-calls {max_calls:,}; {hint}")
        with ThreadPoolExecutor(concurrency, "skills-judge") as threads:
            graded = dict(zip(unique, threads.map(self._grade_one, unique.values()), strict=True))
        return [graded[self.key(*pair)] for pair in asked]

    def _grade_one(self, asked: tuple[bytes, int]) -> dict[str, Any]:
        question: Any = load_json(asked[0])
        try:
            return self.ask(*asked, partial(_parsed, question))
        except UsageError as error:
            raise UsageError(f"{clipped(printable(question['prompt']))}: {error}") from None


def _parsed(question: Mapping[str, Any], output: str) -> tuple[dict[str, Any], float]:
    """Return what a program's output says of a run, and what the run cost."""
    fields = mapping(decoded_answer(output.strip()))
    by_text = {
        str(item.get("text")): item for item in map(mapping, items(fields.get("expectations")))
    }
    graded: list[dict[str, Any]] = []
    for text in question["expectations"]:
        one = by_text.get(text, {})
        if not isinstance(one.get("passed"), bool):
            shown = clipped(printable(text))
            raise UsageError(f"the judge did not say whether this passed: {shown}")
        evidence = str(one.get("evidence") or "")
        graded.append({"text": text, "passed": one["passed"], "evidence": evidence})
    passed, timing = sum(one["passed"] for one in graded), mapping(fields.get("timing"))
    result = {
        "pass_rate": round(passed / len(graded), 4),
        "passed": passed,
        "failed": len(graded) - passed,
        "total": len(graded),
        "time_seconds": _number(timing.get("total_duration_seconds")),
        "tokens": _number(timing.get("total_tokens")),
    }
    model = printable(str(fields.get("model") or ""))
    return {"result": result, "expectations": graded, "model": model}, reported_cost(fields)


def _number(value: Any) -> float:
    is_figure = isinstance(value, (int, float)) and 0 <= value < _MAX_FIGURE
    return float(value) if is_figure else 0.0


def wilson(passed: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    share, square = passed / total, _Z * _Z
    middle = share + square / (2 * total)
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    scale = 1 + square / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def compare_shares(one: tuple[int, int], other: tuple[int, int]) -> Lift:
    """Compare (passed, total) of two configurations, by Newcombe's interval from Wilson's."""
    share, base = one[0] / one[1], other[0] / other[1]
    (low, high), (base_low, base_high) = wilson(*one), wilson(*other)
    difference = share - base
    below = math.hypot(share - low, base_high - base)
    above = math.hypot(high - share, base - base_low)
    low, high, verdict = difference - below, difference + above, "not shown"
    if low > 0:
        verdict = "helps"
    elif high < 0:
        verdict = "harms"
    return Lift(difference, low, high, verdict)


def benchmark(skill: str, path: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return skill-creator's benchmark.json of these runs, with intervals as `lift`."""
    results: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        results.setdefault(run["configuration"], []).append(run["result"])
    summary = {name: _statistics(given) for name, given in results.items()}
    totals = {
        name: (sum(one["passed"] for one in given), sum(one["total"] for one in given))
        for name, given in results.items()
    }
    delta = {
        key: format(summary[WITH][key]["mean"] - summary[WITHOUT][key]["mean"], form)
        for key, form in _DELTAS.items()
    }
    compared: dict[str, Json] = {}
    notes: list[str] = []
    for name, shown in _SHOWN.items():
        if name in totals:
            (passed, total), (base, base_total) = totals[WITH], totals[name]
            against = compare_shares(totals[WITH], totals[name])
            compared[name] = against._asdict()
            shares = f"{passed:,} of {total:,} assertions, {base:,} of {base_total:,} with {shown}"
            band = f"{against.difference:+.2f} (95 % {against.low:+.2f} to {against.high:+.2f})"
            notes.append(f"{against.verdict}: {shares}, {band}")
    return {
        "metadata": {
            "skill_name": skill,
            "skill_path": path,
            "executor_model": runs[0]["model"],
            "analyzer_model": runs[0]["model"],
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "evals_run": list(dict.fromkeys(run["eval_id"] for run in runs)),
            "runs_per_configuration": max(run["run_number"] for run in runs),
        },
        "runs": runs,
        "run_summary": {**summary, "delta": delta},
        "notes": notes,
        "lift": {
            "intervals": {name: wilson(*counts) for name, counts in totals.items()},
            "comparisons": compared,
        },
    }


def _statistics(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    for key in _DELTAS:
        values = [float(result[key]) for result in results]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        named = {"mean": statistics.fmean(values), "stddev": spread}
        named |= {"min": min(values), "max": max(values)}
        figures[key] = {name: round(value, 4) for name, value in named.items()}
    return figures


def remember(answers: Index, digest: str, report: Mapping[str, Any]) -> None:
    """Cache the notes about the version of a skill with this digest, with their day and model."""
    about = report["metadata"]
    origin = f"{about['timestamp'][:10]} with {about['executor_model'] or 'an unnamed model'}"
    notes = [f"{note}; measured {origin}" for note in report["notes"]]
    answers.save_memos(_KIND, {digest.encode(): json.dumps(notes).encode()})


def remembered(answers: Index | None, digest: str) -> list[str]:
    """Return the cached notes about the version with this digest; never run a program."""
    key = digest.encode()
    known = {} if answers is None else answers.memos(_KIND, [key])
    return [str(note) for note in load_json(known.get(key, b"[]"))]


def last_version(root: str, folder: str, nested: Sequence[str], files: Files) -> Files | None:
    """Return the newest version in git that differs from `files`, or None. Blocks.

    The evals, nested skills and files of ignored names do not count.
    """
    top = working_copy(Path(root))
    if top is None or not Path(folder).is_relative_to(top):
        return None
    relative = Path(folder).relative_to(top)
    inside = relative.as_posix() if relative.parts else ""
    git, left_out = Git(top / ".git", url="", protocol="none"), [EVALS.rstrip("/"), *nested]
    below = tuple(f"{name}/" for name in left_out)
    for commit in read_log(git, pathspecs(inside, left_out)) or ():
        with suppress(GitFailedError, SourceError):  # it may have removed the folder
            version = _version(git, f"{commit.id}:{inside}", below)
            if SKILL_MD in version and _graded(version) != _graded(files):
                return version
    return None


def _version(git: Git, tree: str, left_out: tuple[str, ...]) -> Files:
    raw = git.run("ls-tree", "-r", "-z", "--end-of-options", tree, seconds=_GIT_S)
    files: dict[str, tuple[bytes, bool]] = {}
    for line in raw.decode("utf-8", "surrogateescape").split("\0"):
        meta, _, path = line.partition("\t")
        is_file = meta.startswith("100")  # neither a link nor a submodule
        if is_file and not ignored([path]) and not path.startswith(left_out):
            blob = git.run("cat-file", "blob", meta.split()[2], seconds=_GIT_S, most=_MAX_BYTES)
            files[path] = blob, meta.startswith("100755")
    return files
