"""Execution of skill actions and code, with the sandbox, limits and queue of scripts.

Each run has a temporary work directory with arguments and blobs. A run executes a file of a skill,
found by exact look-up, or code from the call, written into that directory. The run's output is
untrusted: no symlink is followed, and all reads are bounded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, cast

import anyio
from anyio import to_thread

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.access.quota import Owner, QuotaError
from mcp_skills_server.catalog import disk
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.skills_protocol import DISABLED, CodeExecution, Execution, Run
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.format.manifest import ACTION, Manifest
from mcp_skills_server.model import Json, Skill, printable
from mcp_skills_server.rpc import launcher
from mcp_skills_server.rpc.blobs import PREFIX, BlobStore
from mcp_skills_server.rpc.messages import MAX_SUMMARY, failed, new_run_id
from mcp_skills_server.runtime.scripts import output_files
from mcp_skills_server.runtime.scripts.launch import NOT_STARTED
from mcp_skills_server.runtime.scripts.outcome import OURS, Outcome
from mcp_skills_server.runtime.scripts.policy import RunRefusedError
from mcp_skills_server.runtime.scripts.runner import RunRequest, Scripts

BLOBS_OUT: Final = "output_blobs"
"""The folder of the work directory whose files become blobs after the run."""
BLOBS_IN: Final = "blobs"
"""The folder of the work directory with input blobs, named without `blob:`."""
MAX_INPUT_BLOBS: Final = 64
MAX_OUTPUT_BLOBS: Final = 64
MAX_MOUNTED: Final = 16
_TIDYING_S: Final = 20.0
_LEFT_OUT: Final = f"\nmcp-skills-server: some files in {BLOBS_OUT} are above the limits\n"
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
"""File extensions by language, where the name is not the extension."""
_REFUSED: Final = {"grant": DISABLED, "source": "not_run", "secret": "secret_missing"}
"""The error kind by the missing condition, `RunRefusedError.by`."""
_MAX_MS: Final = 10**12
"""A limit in milliseconds above all allowed ones that a float can hold."""
MAX_RESULT: Final = 1 << 20
"""The maximum JSON size of a function's result, in bytes."""
_MAX_LOGS: Final = 4000
_NODE: Final = "Node.js v"


class Executor:
    """Executor of actions and code for one server, on one event loop."""

    def __init__(self, scripts: Scripts, blobs: BlobStore) -> None:
        self._scripts = scripts
        self._blobs = blobs

    async def run(
        self,
        manifest: Manifest,
        skill: Skill,
        request: Execution,
        owner: Owner | None = None,
        *,
        permissions: Permissions | None = None,
    ) -> Run:
        """Run a skill's entry point to its end; failures of the run are in the result.

        The run is charged to `owner`. `permissions` are the caller's; None if only options decide.

        Raises:
            QuotaError: the owner has too many runs.
            RequestError: an input blob is unknown.
            OSError: a file of the skill changed and nothing was started; rescan the skill and
                retry.
        """
        keys = ("entrypoint", "language", "export")
        entry, language, export = (manifest.runtime.get(key) for key in keys)
        if manifest.fields["kind"] != ACTION or not isinstance(entry, str):
            message = f"{manifest.name} is not an action with an entry point; read it"
            return failed("not_executable", message)
        if entry not in skill.files:
            message = f"the entry point {printable(entry[:200])} is not a file of the skill"
            return failed("not_executable", message)
        python = entry.endswith(".py") and language in (None, *_PYTHON)
        if export is not None and not (python and isinstance(export, str)):
            message = (
                "only exports of Python entry points can be called; other entry points run as "
                "programs, without export"
            )
            return failed("unsupported_runtime", message)
        named = (request.args.get(name) for name in manifest.blob_inputs)
        blobs = [name for name in named if isinstance(name, str)]
        run = RunRequest(
            skill=skill,
            path=entry,
            directory=manifest.name,
            needs=manifest.secrets,
            owner=owner,
            permissions=permissions,
        )
        return await self._perform(run, manifest.name, request, export, blobs=blobs)

    async def run_code(
        self,
        request: CodeExecution,
        skills: Mapping[str, Skill],
        owner: Owner | None = None,
        *,
        permissions: Permissions | None = None,
    ) -> Run:
        """Run code from the call, with skills mounted by name; otherwise like `run`.

        Raises:
            RequestError: an input blob is unknown, or there are too many skills.
        """
        extension = _EXTENSIONS.get(request.language, f".{request.language}")
        if extension not in self._scripts.extensions:
            known = ", ".join(_languages(self._scripts.extensions))
            language = printable(request.language[:100])
            message = f"the language {language!r} is not supported here; supported: {known}"
            return failed("unsupported_runtime", message)
        function = request.entrypoint
        if function is not None and not (extension == ".py" and function.isidentifier()):
            message = (
                "entrypoint is the name of a Python function to call; leave it out to run the "
                "code as a program"
            )
            return failed("unsupported_runtime", message)
        if len(skills) > MAX_MOUNTED:
            raise RequestError(f"at most {MAX_MOUNTED} skills can be mounted for a run")
        name = f"main{extension}"
        code = {name: request.code.encode("utf-8", "replace")}
        run = RunRequest(skill=None, path=name, skills=skills, owner=owner, permissions=permissions)
        return await self._perform(run, "the code", request, function, code=code)

    async def _perform(
        self,
        run: RunRequest,
        title: str,
        request: Execution | CodeExecution,
        function: str | None,
        *,
        blobs: Iterable[str] = (),
        code: Mapping[str, bytes] | None = None,
    ) -> Run:
        """Run a file in a temporary work directory, and collect its result and output blobs.

        Args:
            run: the file; its owner is charged for the output blobs.
            title: its name in the summary.
            request: arguments, input blobs and time limit.
            function: the function to call; None to run a program.
            blobs: ids of further input blobs.
            code: the file, unless a skill has it.
        """
        files = self._input_blobs(dict.fromkeys((*request.input_blobs, *blobs)))
        files |= {launcher.ARGS: jsonrpc.dump(request.args), **(code or {})}
        called = function is not None
        run = replace(run, fill=partial(_fill, files, called))
        if function is not None:
            run = replace(run, args=(function,), launcher=_LAUNCHER)
        if request.timeout_ms is not None:
            run = replace(run, timeout_s=min(request.timeout_ms, _MAX_MS) / 1000)
        try:
            outcome, output = await self._run(run)
        except QuotaError:  # a RequestError too, but the caller answers it with its own code
            raise
        except RunRefusedError as error:
            return failed(_REFUSED[error.by], str(error))
        except RequestError as error:
            return failed("not_run", str(error))
        made: list[str] = []
        remark = ""
        if not output.is_whole:
            remark = _LEFT_OUT
        try:
            for raw in output.files:
                made.append(self._blobs.add(raw, run.owner))
        except QuotaError:
            remark = _LEFT_OUT
        return to_run(title, outcome, output.result, tuple(made), called=called, remark=remark)

    def _input_blobs(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the input blobs by their paths in the work directory."""
        if len(names) > MAX_INPUT_BLOBS:
            raise RequestError(f"at most {MAX_INPUT_BLOBS} blobs can be passed to a run")
        return {BLOBS_IN + "/" + name.removeprefix(PREFIX): self._blobs.get(name) for name in names}

    async def _run(self, run: RunRequest) -> tuple[Outcome, _Output]:
        """Run a file in a work directory, and read its output there before it is removed."""
        limit, workspace = self._blobs.limit(run.owner), self._scripts.workspace()
        try:
            outcome = await self._scripts.run(run, workspace)
            return outcome, await to_thread.run_sync(_collect_output, workspace.path, limit)
        finally:
            with anyio.move_on_after(_TIDYING_S, shield=True):
                await to_thread.run_sync(workspace.close, abandon_on_cancel=True)


def _languages(extensions: Iterable[str]) -> list[str]:
    """Return the languages of these extensions, or the bare extension without a language."""
    names = {name for name, extension in _EXTENSIONS.items() if extension in extensions}
    return sorted(
        names | {extension[1:] for extension in extensions if extension not in _EXTENSIONS.values()}
    )


# The work directory


def _fill(files: Mapping[str, bytes], called: bool, work: str) -> None:
    """Write the run's input files, and the launcher if a function is called."""
    if called:
        shutil.copyfile(launcher.__file__, os.path.join(work, _LAUNCHER))
    for directory in (BLOBS_IN, BLOBS_OUT):
        os.mkdir(os.path.join(work, directory), 0o700)
    for name, raw in files.items():
        with open(os.path.join(work, *name.split("/")), "xb") as file:
            file.write(raw)


class _Output(NamedTuple):
    """The output of a run: its result, output blob files, and whether those are complete."""

    result: bytes | None
    files: Sequence[bytes]
    is_whole: bool


def _collect_output(work: str, most: int) -> _Output:
    """Read the output of a run from its work directory, whose files are untrusted."""
    result: bytes | None = None
    names: list[str] = []
    files: list[bytes] = []
    with output_files.skip_absent():
        with disk.open_directory(work, "", follow=False) as directory:
            result = output_files.read_plain(directory, launcher.RESULT, MAX_RESULT)
        with disk.open_directory(work, BLOBS_OUT, follow=False) as directory:
            with os.scandir(directory) as entries:
                names = sorted(entry.name for entry in islice(entries, MAX_OUTPUT_BLOBS * 4))
            for name in names:
                if len(files) == MAX_OUTPUT_BLOBS:
                    break
                raw = output_files.read_plain(directory, name, most)
                if raw is not None:
                    files.append(raw)
                    most -= len(raw)
    return _Output(result, files, len(files) == len(names))


def to_run(
    title: str,
    outcome: Outcome,
    result: bytes | None,
    blobs: tuple[str, ...],
    *,
    called: bool,
    remark: str,
) -> Run:
    """Convert a script's outcome into a Run; `remark` is appended to the log.

    A function was `called` by the launcher, which wrote its result as JSON. A program printed it.
    """
    logs = outcome.stderr + remark
    if called:
        logs = outcome.stdout + logs
        output, error = _returned(result)
    else:
        output, error = _printed(outcome), None
    last = _reason(outcome.stderr, ours=outcome.exit_code in {None, NOT_STARTED})
    if outcome.timed_out:
        error = ("timeout", "the run was ended after its time limit")
    # A function that left a result did start: 127 is then its own exit code.
    elif outcome.exit_code == NOT_STARTED and not (called and result is not None):
        error = ("not_started", last or "it could not be started")
    elif outcome.exit_code != 0 and error is None:
        how = f"ended with exit code {outcome.exit_code}"
        if outcome.exit_code is None:
            how = "was ended"
        error = ("execution_failed", last or f"{title} {how}")
    elif called and error is None and result is None:
        message = f"it ended without a result, or with one of more than {MAX_RESULT:,} bytes"
        error = ("execution_failed", message)
    elif not called and outcome.stdout_truncated:
        message = f"its output exceeds the limit; leave large output as files in {BLOBS_OUT}"
        error = ("output_too_long", message)
    summary = f"{title} completed in {outcome.duration_ms} ms."
    if error is not None:
        summary, output = " ".join(error[1].split())[:MAX_SUMMARY] or error[0], None
    return Run(new_run_id(), summary, output, blobs, logs[-_MAX_LOGS:], error)


def _returned(result: bytes | None) -> tuple[Json, tuple[str, str] | None]:
    """Decode the launcher's JSON into output and error."""
    if result is None:
        return None, None
    with suppress(jsonrpc.JsonError):
        report = mapping(jsonrpc.parse(result))
        if error := mapping(report.get("error")):
            kind, message = str(error.get("type")), str(error.get("message"))
            return None, (kind[:MAX_SUMMARY], message[:_MAX_LOGS])
        if "output" in report:
            return cast(Json, report["output"]), None
    return None, ("execution_failed", "the result that the entry point left cannot be parsed")


def _printed(outcome: Outcome) -> Json:
    """Return a program's output: decoded JSON if possible, else text."""
    try:
        return cast(Json, jsonrpc.parse(outcome.stdout.encode("utf-8", "replace")))
    except jsonrpc.JsonError:
        return outcome.stdout


def _reason(stderr: str, *, ours: bool) -> str:
    """Return the failure reason: the last unindented line of stderr, except Node's version."""
    lines = stderr.splitlines()
    if not ours:  # our own advice is not the program's error
        lines = [line for line in lines if not line.startswith(OURS)]
    lines = [line.rstrip() for line in lines if line.strip() and not line.startswith(_NODE)]
    plain = [line for line in lines if not line[0].isspace()]
    return next(reversed(plain or lines), "").strip()[:_MAX_LOGS]
