"""Runs actions and code with what runs scripts: the same sandbox, limits and turns.

Each run has a work directory of its own, which is gone with its end. What runs is a file of a skill, found by exact
look-up, or code that came with the call and is written into the work directory; arguments and blobs are files beside
it. What the run leaves there is read as something that an enemy made: no link is followed, and nothing without a bound
is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any, Final, cast

import anyio
from anyio import to_thread

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.skills_protocol import DISABLED, CodeExecution, Execution, Run
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import media
from mcp_skills_server.format.manifest import ACTION, Manifest
from mcp_skills_server.model import Json, Skill, printable
from mcp_skills_server.rpc import launcher
from mcp_skills_server.rpc.blobs import PREFIX, Blobs
from mcp_skills_server.rpc.messages import MAX_SUMMARY, failed, new_run_id
from mcp_skills_server.runtime.quota import Owner, QuotaError
from mcp_skills_server.runtime.scripts import output_files
from mcp_skills_server.runtime.scripts.launch import NOT_STARTED
from mcp_skills_server.runtime.scripts.outcome import OURS, Outcome
from mcp_skills_server.runtime.scripts.policy import RunRefusedError
from mcp_skills_server.runtime.scripts.runner import Scripts
from mcp_skills_server.runtime.scripts.workspace import Workspace

BLOBS_OUT: Final = "output_blobs"
"""Where, in the work directory, a run leaves files that are to become blobs."""
BLOBS_IN: Final = "blobs"
"""Where, in the work directory, the input blobs lie: each under its name without `blob:`."""
MAX_INPUT_BLOBS: Final = 64
MAX_OUTPUT_BLOBS: Final = 64
MAX_MOUNTED: Final = 16
_TIDYING_S: Final = 20.0
_LEFT_OUT: Final = f"\nmcp-skills-server: there are more files in {BLOBS_OUT} than are kept\n"
_LAUNCHER: Final = ".launcher.py"
_PYTHON: Final = ("python", "python3", "py")
_EXTENSIONS: Final = {
    **dict.fromkeys(_PYTHON, ".py"),
    "javascript": ".js",
    "node": ".js",
    "typescript": ".ts",
    "shell": ".sh",
    "ruby": ".rb",
    "perl": ".pl",
    "powershell": ".ps1",
}
"""Languages whose name is not their extension."""
_REFUSED: Final = {"grant": DISABLED, "source": "not_run", "secret": "secret_missing"}
"""By what is missing, the kind of the error."""
_LONGEST_MS: Final = 10**12
"""More than is ever allowed, and still a number of floating point."""
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,16}", re.ASCII)
MAX_RESULT: Final = 1 << 20
"""Bytes of the JSON that a function may return."""
_MAX_LOGS: Final = 4000
_NODE: Final = "Node.js v"


@dataclass(frozen=True, slots=True)
class _Task:
    """A run that has not begun.

    Attributes:
        title: what the summary calls it.
        blobs: identifiers of the blobs that it may read.
        called: whether a function of it is called; else it is run as a program.
        files: what is put into the work directory beside arguments and blobs, by name.
        owner: among whose blobs those that it leaves count.
    """

    title: str
    args: Mapping[str, Json]
    blobs: tuple[str, ...]
    called: bool
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    owner: Owner = None


class Executor:
    """Runs actions and code for one server, on one event loop."""

    def __init__(self, scripts: Scripts, blobs: Blobs) -> None:
        self._scripts = scripts
        self._blobs = blobs

    async def run(
        self,
        manifest: Manifest,
        skill: Skill,
        request: Execution,
        owner: Owner = None,
        *,
        permissions: Permissions | None = None,
    ) -> Run:
        """Run the entry point of a skill and wait for its end; what goes wrong with it is in the result.

        It counts among the runs of `owner`. `permissions` are those of the caller; None where the options alone decide.

        Raises:
            QuotaError: the owner runs too much already.
            RequestError: an input blob is unknown.
            StaleFileError: a file of the skill changed; scan it again and call again. Nothing was started.
        """
        entry, language, export = (manifest.runtime.get(name) for name in ("entrypoint", "language", "export"))
        if manifest.fields["kind"] != ACTION or not isinstance(entry, str):
            return failed("not_executable", f"{manifest.name} is no action with an entry point; read it")
        if entry not in skill.files:
            return failed("not_executable", f"the entry point {printable(entry[:200])} is no file of the skill")
        python = entry.endswith(".py") and language in (None, *_PYTHON)
        if export is not None and not (python and isinstance(export, str)):
            message = (
                "only exports of Python entry points can be called here; others are run as programs, without export"
            )
            return failed("unsupported_runtime", message)

        def start(workspace: Workspace, fill: Callable[[str], None]) -> Awaitable[Outcome]:
            return self._scripts.run(
                skill,
                entry,
                workspace,
                args=() if export is None else (str(export),),
                timeout_s=_seconds(request.timeout_ms),
                directory=manifest.name,
                launcher=None if export is None else _LAUNCHER,
                fill=fill,
                owner=owner,
                permissions=permissions,
                needs=manifest.secrets,
            )

        named = (request.args.get(name) for name in manifest.blob_inputs)
        blobs = (*request.input_blobs, *(each for each in named if isinstance(each, str)))
        return await self._perform(_Task(manifest.name, request.args, blobs, export is not None, owner=owner), start)

    async def run_code(
        self,
        request: CodeExecution,
        skills: Mapping[str, Skill],
        owner: Owner = None,
        *,
        permissions: Permissions | None = None,
    ) -> Run:
        """Run code that came with the call, with some skills mounted by name; the rest is as for `run`.

        Raises:
            RequestError: an input blob is unknown, or too many skills are to be mounted.
        """
        extension = _EXTENSIONS.get(request.language, f".{request.language}")
        if not _EXTENSION.fullmatch(extension[1:]) or extension not in self._scripts.extensions:
            known = ", ".join(_languages(self._scripts.extensions))
            message = f"the language {printable(request.language[:100])!r} is not run here; there are {known}"
            return failed("unsupported_runtime", message)
        if request.entrypoint is not None and not (extension == ".py" and request.entrypoint.isidentifier()):
            message = "entrypoint is the name of a Python function to call; leave it out to run the code as a program"
            return failed("unsupported_runtime", message)
        if len(skills) > MAX_MOUNTED:
            raise RequestError(f"at most {MAX_MOUNTED} skills are mounted for a run")
        name = f"main{extension}"

        def start(workspace: Workspace, fill: Callable[[str], None]) -> Awaitable[Outcome]:
            return self._scripts.run(
                None,
                name,
                workspace,
                skills=skills,
                args=() if request.entrypoint is None else (request.entrypoint,),
                timeout_s=_seconds(request.timeout_ms),
                launcher=None if request.entrypoint is None else _LAUNCHER,
                fill=fill,
                owner=owner,
                permissions=permissions,
            )

        code = {name: request.code.encode("utf-8", "replace")}
        return await self._perform(
            _Task("the code", request.args, request.input_blobs, request.entrypoint is not None, code, owner), start
        )

    async def _perform(
        self, task: _Task, start: Callable[[Workspace, Callable[[str], None]], Awaitable[Outcome]]
    ) -> Run:
        """Run in a work directory that is filled when its turn comes, and take out what is left."""
        wanted = dict.fromkeys(task.blobs)
        if len(wanted) > MAX_INPUT_BLOBS:
            raise RequestError(f"at most {MAX_INPUT_BLOBS} blobs are handed to a run")
        files = {BLOBS_IN + "/" + name.removeprefix(PREFIX): self._blobs.get(name).raw for name in wanted}
        try:
            files |= {launcher.ARGS: jsonrpc.dump(task.args), **task.files}
        except RecursionError:
            raise RequestError("args is nested too deeply") from None
        if task.called:
            files[_LAUNCHER] = (resources.files("mcp_skills_server.rpc") / "launcher.py").read_bytes()
        workspace = self._scripts.workspace()
        try:
            outcome = await start(workspace, partial(_fill, files))
            result, left, whole = await to_thread.run_sync(_harvest, workspace.path, self._blobs.limit(task.owner))
        except QuotaError:
            raise
        except RunRefusedError as error:
            return failed(_REFUSED[error.by], str(error))
        except RequestError as error:
            return failed("not_run", str(error))
        finally:
            with anyio.move_on_after(_TIDYING_S, shield=True):
                await to_thread.run_sync(workspace.close, abandon_on_cancel=True)
        blobs: list[str] = []
        try:
            for name, raw in left.items():
                blobs.append(self._blobs.add(raw, media.media_type(name) or "text/plain", task.owner))
        except QuotaError:
            whole = False
        remark = "" if whole else _LEFT_OUT
        return ended(task.title, outcome, result, tuple(blobs), called=task.called, remark=remark)


def _seconds(timeout_ms: int | None) -> float | None:
    return None if timeout_ms is None else min(timeout_ms, _LONGEST_MS) / 1000


def _languages(extensions: Iterable[str]) -> list[str]:
    """Return what may be asked for, of these extensions: names, and extensions that have none."""
    names = {name for name, extension in _EXTENSIONS.items() if extension in extensions}
    return sorted(names | {each[1:] for each in extensions if each not in _EXTENSIONS.values()})


# The work directory


def _fill(files: Mapping[str, bytes], work: str) -> None:
    """Write the input files of the run, before any script writes here."""
    for directory in (BLOBS_IN, BLOBS_OUT):
        os.mkdir(os.path.join(work, directory), 0o700)
    for name, raw in files.items():
        with open(os.path.join(work, *name.split("/")), "xb") as file:
            file.write(raw)


def _harvest(work: str, most: int) -> tuple[bytes | None, dict[str, bytes], bool]:
    """The result, the files that are to become blobs, and whether those are all. Trusts nothing that it finds."""
    directory = output_files.open_directory(work)
    if directory is None:
        return None, {}, True
    with directory:
        result = directory.take(launcher.RESULT, MAX_RESULT)
        files: dict[str, bytes] = {}
        inner = directory.inner(BLOBS_OUT)
        if inner is None:
            return result, files, True
        with inner:
            names = sorted(inner.names(MAX_OUTPUT_BLOBS * 4))
            for name in names:
                raw = inner.take(name, most) if len(files) < MAX_OUTPUT_BLOBS else None
                if raw is not None:
                    files[name] = raw
                    most -= len(raw)
        return result, files, len(files) == len(names)


def ended(
    title: str, outcome: Outcome, result: bytes | None, blobs: tuple[str, ...], *, called: bool, remark: str
) -> Run:
    """Return a run that has ended, well or not, a function that was `called` or a program that printed its output.

    `result` is what the launcher wrote down, if it did; `remark` is appended to the log.
    """
    logs = (outcome.stdout if called else "") + outcome.stderr + remark
    output, error = _returned(result) if called else (_printed(outcome), None)
    last = _reason(outcome.stderr, ours=outcome.exit_code in {None, NOT_STARTED})
    if outcome.timed_out:
        error = ("timeout", "the run was ended after its time limit")
    elif outcome.exit_code == NOT_STARTED and not (called and result is not None):
        error = ("not_started", last or "it could not be started")
    elif outcome.exit_code != 0 and error is None:
        how = "was ended" if outcome.exit_code is None else f"ended with exit code {outcome.exit_code}"
        error = ("execution_failed", last or f"{title} {how}")
    elif called and error is None and result is None:
        error = ("execution_failed", f"it ended without a result, or with one of more than {MAX_RESULT:,} bytes")
    elif not called and outcome.stdout_truncated:
        error = ("output_too_long", f"it printed more than is kept; leave large output as files in {BLOBS_OUT}")
    done = f"{title} completed in {outcome.duration_ms} ms."
    summary = done if error is None else " ".join(error[1].split())[:MAX_SUMMARY] or error[0]
    return Run(new_run_id(), summary, None if error else output, blobs, logs[-_MAX_LOGS:], error)


def _returned(result: bytes | None) -> tuple[Json, tuple[str, str] | None]:
    """Return the output that the launcher wrote down, and the error."""
    if result is None:
        return None, None
    try:
        report = jsonrpc.parse(result)
        if isinstance(report, dict):
            fields = cast(dict[str, Any], report)
            error = fields.get("error")
            if isinstance(error, dict):
                of = cast(dict[str, Any], error)
                return None, (str(of.get("type"))[:MAX_SUMMARY], str(of.get("message"))[:_MAX_LOGS])
            if "output" in fields:
                return cast(Json, fields["output"]), None
    except jsonrpc.JsonError:
        pass
    return None, ("execution_failed", "what the entry point left as its result cannot be read")


def _printed(outcome: Outcome) -> Json:
    """Return what a program printed: JSON if it is JSON, else text."""
    try:
        return cast(Json, jsonrpc.parse(outcome.stdout.encode("utf-8", "replace")))
    except jsonrpc.JsonError:
        return outcome.stdout


def _reason(stderr: str, *, ours: bool) -> str:
    """The line that says why: the last one that is neither indented, as in a stack of calls, nor Node's last line."""
    lines = stderr.splitlines()
    if not ours:  # advice is no reason
        lines = [line for line in lines if not line.startswith(OURS)]
    lines = [line.rstrip() for line in lines if line.strip() and not line.startswith(_NODE)]
    plain = [line for line in lines if not line[0].isspace()]
    return next(reversed(plain or lines), "").strip()[:_MAX_LOGS]
