"""Lift: what a skill changes in a model's outputs, by the assertions of its `evals/evals.json`.

One run of a program does a prompt, with a version of the skill or without it, and grades the
output. It reads a JSON object from stdin: `prompt`, `skill` (`name` and `files`, or null),
`inputs`, `expected_output` and `expectations`. It prints skill-creator's grading, `{"expectations":
[{"text": ..., "passed": true, "evidence": ...}]}`, and may add `timing`, `model` and `cost_usd`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from mcp_skills_server.authoring.evaluation import read_cases
from mcp_skills_server.authoring.judges import JudgeProgram, decoded_answer, reported_cost
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.format.ignored import ignored
from mcp_skills_server.model import EVALS, Json, printable
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
_Z: Final = 1.959964
"""The quantile of the normal distribution for intervals of 95 %."""
_MAX_ASSERTIONS: Final = 1_000
_MAX_BYTES: Final = 16 << 20
_GIT_S: Final = 20.0


class OutputEval(NamedTuple):
    """A prompt whose output is graded by assertions."""

    id: Json
    name: str
    prompt: str
    expected_output: str
    assertions: Sequence[str]
    inputs: Sequence[str]  # paths of files in the skill that the prompt is about


class Grading(NamedTuple):
    """The graded assertions of one run, in skill-creator's form, and what the run took."""

    assertions: Sequence[dict[str, Json]]
    seconds: float
    tokens: int
    model: str

    @property
    def passed(self) -> int:
        """Return the number of passed assertions."""
        return sum(one["passed"] is True for one in self.assertions)


class GradedRun(NamedTuple):
    """One run of an eval in a configuration; `number` counts from 1."""

    of_eval: OutputEval
    configuration: str
    number: int
    grading: Grading


class Comparison(NamedTuple):
    """The difference of two shares of passed assertions, its 95 % interval, and the verdict."""

    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Return "helps" or "harms" where the interval excludes zero, or else "not shown"."""
        if self.low > 0:
            return "helps"
        return "harms" if self.high < 0 else "not shown"


def read_evals(raw: bytes, where: str) -> list[OutputEval]:
    """Return the evals of an `evals.json` that have assertions.

    Raises:
        UsageError: the file has another form. The message says what is wrong, and where.
    """
    cases = read_cases(raw, where)
    decoded: Any = load_json(raw)
    if not isinstance(decoded, dict):
        raise UsageError(f'{where}: is a trigger set; write {{"evals": [...]}}')
    evals: list[OutputEval] = []
    for at, entry in enumerate(cast("dict[str, Any]", decoded)["evals"]):
        of_entry = f"{where}: evals[{at}]"
        given = [*_listed(entry, "assertions", of_entry), *_listed(entry, "expectations", of_entry)]
        if given:
            eval_id, name = entry.get("id", at + 1), entry.get("name") or entry.get("eval_name")
            files = _listed(entry, "files", of_entry)
            expected = str(entry.get("expected_output") or "")
            texts = tuple(dict.fromkeys(given))
            name = str(name or f"eval-{eval_id}")
            evals.append(OutputEval(eval_id, name, cases[at].query, expected, texts, files))
    return evals


def _listed(entry: Mapping[str, Any], key: str, where: str) -> list[str]:
    """Return the texts of a list; an item may be an object with `text`."""
    given: Any = entry.get(key)
    items = cast("list[Any]", given) if isinstance(given, list) else [given]
    if given is None:
        return []
    texts: list[str] = []
    for item in items[: _MAX_ASSERTIONS + 1]:
        value = cast("dict[str, Any]", item).get("text") if isinstance(item, dict) else item
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{where}: {key!r} is no list of texts")
        texts.append(value.strip())
    if len(texts) > _MAX_ASSERTIONS:
        raise UsageError(
            f"{where}: {key!r} has more than {_MAX_ASSERTIONS:,} items; split the eval"
        )
    return texts


def question_of(of_eval: OutputEval, name: str, skill: Files | None, here: Files) -> bytes:
    """Return what the program reads; `here` has the eval's input files.

    Raises:
        UsageError: an input file does not exist.
    """
    missing = [path for path in of_eval.inputs if path not in here]
    if missing:
        shown = clipped(printable(missing[0]))
        raise UsageError(
            f"{name}: {of_eval.name} needs the file {shown}, which is not in the skill"
        )
    shown_skill: Json = None
    if skill is not None:
        shown_skill = {"name": name, "files": [*map(_encoded, *zip(*_graded(skill), strict=True))]}
    question: Json = {
        "prompt": of_eval.prompt,
        "skill": shown_skill,
        "inputs": [_encoded(path, here[path][0]) for path in of_eval.inputs],
        "expected_output": of_eval.expected_output,
        "expectations": [*of_eval.assertions],
    }
    return json.dumps(question).encode()


def _graded(files: Files) -> list[tuple[str, bytes]]:
    """Return the files of a version in order, without the evals, which have the answers."""
    return [(path, files[path][0]) for path in sorted(files) if not path.startswith(EVALS)]


def _encoded(path: str, raw: bytes) -> dict[str, Json]:
    try:
        return {"path": path, "text": raw.decode()}
    except UnicodeDecodeError:
        return {"path": path, "blob": base64.b64encode(raw).decode()}


class OutputJudge(JudgeProgram):
    """A program that does a prompt and grades its output, within limits of runs and of cost."""

    def __init__(
        self,
        command: str,
        *,
        concurrency: int,
        timeout_s: float,
        answers: Index,
        max_calls: int,
        max_usd: float | None,
    ) -> None:
        super().__init__(command, "outputs", timeout_s, answers)
        self._concurrency = concurrency
        self._max_calls = max_calls
        self._max_usd = math.inf if max_usd is None else max_usd

    def grade(self, asked: Sequence[tuple[bytes, int]]) -> list[Grading]:
        """Return the grading of each question and run.

        Raises:
            UsageError: too many are not cached; nothing was run. Or the program fails, or has cost
                too much; its answers so far are cached.
        """
        unique = {self.key(question, run): (question, run) for question, run in asked}
        new = len(unique.keys() - self.known(unique).keys())
        if new > self._max_calls:
            hint = "raise it, or give fewer skills or --runs; nothing was run"
            raise UsageError(f"{new:,} runs are more than --max-calls {self._max_calls:,}; {hint}")
        pairs = unique.values()
        threads = ThreadPoolExecutor(self._concurrency, "skills-judge")
        try:
            gradings = dict(zip(pairs, threads.map(self._grade_one, pairs), strict=True))
        finally:
            threads.shutdown(cancel_futures=True)
        return [gradings[pair] for pair in asked]

    def _grade_one(self, asked: tuple[bytes, int]) -> Grading:
        question, run = asked
        is_cached = bool(self.known([self.key(question, run)]))
        if self.cost_usd >= self._max_usd and not is_cached:
            spent = f"the judge has cost {self.cost_usd:.4f} of --max-usd {self._max_usd:g}"
            raise UsageError(f"{spent}; its answers are cached: raise the limit to go on")
        wanted: list[str] = load_json(question)["expectations"]
        return self.ask(question, run, lambda output: _parsed(output, wanted))


def _parsed(output: str, wanted: Sequence[str]) -> tuple[Grading, float]:
    """Return the grading that a program printed, and what the run cost."""
    answer: Any = decoded_answer(output.strip())
    fields = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    given: Any = fields.get("expectations")
    graded: dict[str, dict[str, Json]] = {}
    for item in cast("list[Any]", given) if isinstance(given, list) else []:
        one = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        if isinstance(one.get("text"), str) and isinstance(one.get("passed"), bool):
            graded[one["text"]] = {key: one.get(key) for key in ("text", "passed", "evidence")}
    for text in wanted:
        if text not in graded:
            shown = clipped(printable(text))
            raise UsageError(f"the judge did not say whether this passed: {shown}")
    timing: Any = fields.get("timing")
    times = cast("dict[str, Any]", timing) if isinstance(timing, dict) else {}
    seconds, tokens = _number(times, "total_duration_seconds"), _number(times, "total_tokens")
    model = printable(str(fields.get("model") or ""))[:200]
    assertions = [graded[text] for text in wanted]
    return Grading(assertions, seconds, int(tokens), model), reported_cost(fields)


def _number(fields: Mapping[str, Any], key: str) -> float:
    value = fields.get(key)
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e12 else 0.0


def wilson(passed: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    share, square = passed / total, _Z * _Z
    middle = share + square / (2 * total)
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    scale = 1 + square / total
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def compare_shares(one: tuple[int, int], other: tuple[int, int]) -> Comparison:
    """Compare (passed, total) of two configurations, by Newcombe's interval from Wilson's."""
    share, base = one[0] / one[1], other[0] / other[1]
    (low, high), (base_low, base_high) = wilson(*one), wilson(*other)
    difference = share - base
    below = math.hypot(share - low, base_high - base)
    above = math.hypot(high - share, base - base_low)
    return Comparison(difference, difference - below, difference + above)


def totals(runs: Sequence[GradedRun], configuration: str) -> tuple[int, int]:
    """Return the passed assertions of a configuration, and all."""
    gradings = [run.grading for run in runs if run.configuration == configuration]
    return sum(each.passed for each in gradings), sum(len(each.assertions) for each in gradings)


def comparisons(runs: Sequence[GradedRun]) -> dict[str, Comparison]:
    """Return the skill against each other configuration."""
    others = dict.fromkeys(run.configuration for run in runs if run.configuration != WITH)
    return {other: compare_shares(totals(runs, WITH), totals(runs, other)) for other in others}


def notes(runs: Sequence[GradedRun]) -> list[str]:
    """Return one sentence for each comparison."""
    sentences: list[str] = []
    for other, found in comparisons(runs).items():
        passed, total = totals(runs, WITH)
        base, base_total = totals(runs, other)
        shares = f"{passed:,} of {total:,} assertions, {base:,} of {base_total:,} with"
        band = f"{found.difference:+.2f} (95 % {found.low:+.2f} to {found.high:+.2f})"
        sentences.append(f"{found.verdict}: {shares} {_SHOWN[other]}, {band}")
    return sentences


def benchmark(name: str, path: str, runs: Sequence[GradedRun], count: int) -> dict[str, Any]:
    """Return skill-creator's benchmark.json, with intervals and verdicts as `lift`."""
    summary = {run.configuration: _statistics(runs, run.configuration) for run in runs}
    means = [
        {key: value["mean"] for key, value in summary[configuration].items()}
        for configuration in (WITH, WITHOUT)
    ]
    forms = {"pass_rate": "+.2f", "time_seconds": "+.1f", "tokens": "+.0f"}
    delta = {key: format(means[0][key] - means[1][key], form) for key, form in forms.items()}
    lift = {
        other: {**found._asdict(), "verdict": found.verdict}
        for other, found in comparisons(runs).items()
    }
    bands = {configuration: wilson(*totals(runs, configuration)) for configuration in summary}
    return {
        "metadata": {
            "skill_name": name,
            "skill_path": path,
            "executor_model": runs[0].grading.model,
            "analyzer_model": runs[0].grading.model,
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "evals_run": list(dict.fromkeys(run.of_eval.id for run in runs)),
            "runs_per_configuration": count,
        },
        "runs": [_run_json(run) for run in runs],
        "run_summary": {**summary, "delta": delta},
        "notes": notes(runs),
        "lift": {"intervals": bands, "comparisons": lift},
    }


def _run_json(run: GradedRun) -> dict[str, Any]:
    grading = run.grading
    total = len(grading.assertions)
    return {
        "eval_id": run.of_eval.id,
        "eval_name": run.of_eval.name,
        "configuration": run.configuration,
        "run_number": run.number,
        "result": {
            "pass_rate": round(grading.passed / total, 4),
            "passed": grading.passed,
            "failed": total - grading.passed,
            "total": total,
            "time_seconds": grading.seconds,
            "tokens": grading.tokens,
        },
        "expectations": grading.assertions,
    }


def _statistics(runs: Sequence[GradedRun], configuration: str) -> dict[str, dict[str, float]]:
    gradings = [run.grading for run in runs if run.configuration == configuration]
    columns: dict[str, list[float]] = {
        "pass_rate": [each.passed / len(each.assertions) for each in gradings],
        "time_seconds": [each.seconds for each in gradings],
        "tokens": [each.tokens for each in gradings],
    }
    return {
        key: {
            "mean": round(statistics.fmean(values), 4),
            "stddev": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
            "min": round(min(values), 4),
            "max": round(max(values), 4),
        }
        for key, values in columns.items()
    }


def remember(answers: Index, files: Files, sentences: Sequence[str]) -> None:
    """Cache what was measured of this version of a skill."""
    answers.save_memos(_KIND, {_digest(files): json.dumps([*sentences]).encode()})


def recall(answers: Index, files: Files) -> list[str]:
    """Return the cached sentences about this version of a skill; never run a program."""
    key = _digest(files)
    raw = answers.memos(_KIND, [key]).get(key, b"[]")
    return [str(sentence) for sentence in load_json(raw)]


def _digest(files: Files) -> bytes:
    hashes = [(path, hashlib.sha256(raw).hexdigest()) for path, raw in _graded(files)]
    return hashlib.sha256(json.dumps(hashes).encode()).digest()


def last_version(root: str, folder: str, nested: Sequence[str], files: Files) -> Files | None:
    """Return the newest version in git that differs from `files`, or None. Blocks.

    The evals, nested skills and files of ignored names do not count.
    """
    top = working_copy(Path(root))
    if top is None or not Path(folder).is_relative_to(top):
        return None
    relative = Path(folder).relative_to(top)
    inside = relative.as_posix() if relative.parts else ""
    git = Git(top / ".git", "", "none")
    left_out = [EVALS, *(f"{path}/" for path in nested)]
    try:
        places = pathspecs(inside, [path.rstrip("/") for path in left_out])
        for commit in read_log(git, places) or ():
            version = _version(git, commit.id, inside, left_out)
            if version and _digest(version) != _digest(files):
                return version
    except (GitFailedError, SourceError) as error:
        raise UsageError(f"{folder}: git has no last version ({str(error)[:200]})") from None
    return None


def _version(git: Git, commit: str, inside: str, left_out: Sequence[str]) -> Files:
    """Return the files of a folder in a commit."""
    tree = f"{commit}:{inside}"
    try:
        raw = git.run("ls-tree", "-r", "-z", "--end-of-options", tree, seconds=_GIT_S)
    except GitFailedError:
        return {}  # the commit removed the folder
    blobs: dict[str, tuple[str, bool]] = {}
    for line in raw.decode("utf-8", "surrogateescape").split("\0"):
        meta, _, path = line.partition("\t")
        is_file = meta.startswith("100")  # neither a link nor a submodule
        if is_file and not ignored([path]) and not path.startswith(tuple(left_out)):
            mode, _, blob = meta.split(" ")
            blobs[path] = blob, mode == "100755"
    asked = "".join(f"{blob}\n" for blob, _ in blobs.values()).encode()
    out = io.BytesIO(git.run("cat-file", "--batch", seconds=_GIT_S, given=asked, most=_MAX_BYTES))
    files: dict[str, tuple[bytes, bool]] = {}
    for path, (blob, executable) in blobs.items():
        head = out.readline().split()
        if len(head) != 3:
            raise GitFailedError(f"fatal: {blob} is missing; fetch the whole repository")
        files[path] = out.read(int(head[2])), executable
        out.read(1)
    return files
