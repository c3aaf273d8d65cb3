"""The Skills Protocol: parsing of its methods' params, and encoding of their results.

Pure functions.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, cast

from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import hidden
from mcp_skills_server.format.manifest import Manifest
from mcp_skills_server.model import Json

LIST: Final = "list_skills"
DESCRIBE: Final = "describe_skill"
READ: Final = "read_skill_file"
EXECUTE: Final = "execute_skill"
RUN_CODE: Final = "run_code"
CREATE_BLOB: Final = "create_blob"
READ_BLOB: Final = "read_blob"
GUIDE: Final = "load_skills_protocol_guide"
METHODS: Final = (LIST, DESCRIBE, READ, EXECUTE, RUN_CODE, CREATE_BLOB, READ_BLOB, GUIDE)

GUIDE_SKILL: Final = "skills.protocol.guide"
"""The name of the built-in skill that explains the protocol."""
DISABLED: Final = "execution_disabled"
PAGE: Final = 50
LARGEST_PAGE: Final = 1000
"""The maximum page size, which caps the requested limit."""
SAMPLE_BYTES: Final = 4096
"""The default sample size of `read_blob`, in bytes."""


class Listing(NamedTuple):
    """Params of `list_skills`; namespace None means all."""

    namespace: str | None
    detail: Literal["names", "summary"]
    limit: int
    cursor: str | None


class Description(NamedTuple):
    """Params of `describe_skill`; version None means the latest."""

    name: str
    version: str | None
    detail: Literal["manifest", "summary", "full"]


class FileRequest(NamedTuple):
    """Params of `read_skill_file`; the path is unchecked."""

    name: str
    version: str | None
    path: str


class Execution(NamedTuple):
    """Params of `execute_skill`; timeout None means the operator's."""

    name: str
    version: str | None
    args: Mapping[str, Json]
    input_blobs: tuple[str, ...]
    timeout_ms: int | None


class CodeExecution(NamedTuple):
    """Params of `run_code`.

    `language` is in lower case. `entrypoint` is the function of the code to call, None to run it as
    a program. `mount_skills` are names of skills whose files the code may read, `input_blobs` ids
    of blobs. Timeout None means the operator's.
    """

    language: str
    code: str
    entrypoint: str | None
    args: Mapping[str, Json]
    mount_skills: tuple[str, ...]
    input_blobs: tuple[str, ...]
    timeout_ms: int | None


class BlobRequest(NamedTuple):
    """Params of `read_blob`."""

    blob_id: str
    mode: Literal["sample_head", "sample_tail", "full"]
    max_bytes: int | None


# Each parser below handles the params of one method, and raises RequestError on an invalid param.


def listing(params: Mapping[str, Any]) -> Listing:
    """Parse the params of `list_skills`."""
    detail = _choice(params, "detail", ("names", "summary"), "names")
    limit = _integer(params, "limit") or PAGE
    # Some clients send namespace "" for an absent param. No skill has that namespace.
    namespace, cursor = _text(params, "namespace") or None, _text(params, "cursor")
    return Listing(namespace, detail, min(limit, LARGEST_PAGE), cursor)


def description(params: Mapping[str, Any]) -> Description:
    """Parse the params of `describe_skill`."""
    detail = _choice(params, "detail", ("manifest", "summary", "full"), "summary")
    return Description(_needed(params, "name"), _text(params, "version"), detail)


def file_request(params: Mapping[str, Any]) -> FileRequest:
    """Parse the params of `read_skill_file`."""
    return FileRequest(_needed(params, "name"), _text(params, "version"), _needed(params, "path"))


def execution(params: Mapping[str, Any]) -> Execution:
    """Parse the params of `execute_skill`."""
    return Execution(
        _needed(params, "name"),
        _text(params, "version"),
        _object(params, "args"),
        _texts(params, "input_blobs"),
        _integer(params, "timeout_ms"),
    )


def code_execution(params: Mapping[str, Any]) -> CodeExecution:
    """Parse the params of `run_code`."""
    return CodeExecution(
        _needed(params, "language").lower(),
        _needed(params, "code"),
        _text(params, "entrypoint") or None,
        _object(params, "args"),
        _texts(params, "mount_skills"),
        _texts(params, "input_blobs"),
        _integer(params, "timeout_ms"),
    )


def blob_content(params: Mapping[str, Any]) -> str:
    """Parse the content from the params of `create_blob`; nothing depends on its media type."""
    content = _text(params, "content")
    if content is None:
        raise RequestError("content is missing; give the text to store")
    _text(params, "kind")
    return content


def blob_request(params: Mapping[str, Any]) -> BlobRequest:
    """Parse the params of `read_blob`."""
    mode = _choice(params, "mode", ("sample_head", "sample_tail", "full"), "sample_head")
    most = _integer(params, "max_bytes")
    if most is None and mode != "full":
        most = SAMPLE_BYTES
    return BlobRequest(_needed(params, "blob_id"), mode, most)


def _text(params: Mapping[str, Any], name: str) -> str | None:
    value = params.get(name)
    if value is None or isinstance(value, str):
        return value
    raise RequestError(f"{name} must be a string")


def _needed(params: Mapping[str, Any], name: str) -> str:
    value = _text(params, name)
    if not value:
        raise RequestError(f"{name} is missing; it must be a string that is not empty")
    return value


def _choice(params: Mapping[str, Any], name: str, choices: Sequence[str], default: str) -> Any:
    value = _text(params, name)
    if value is None:
        return default
    if value not in choices:
        raise RequestError(f"{name} must be {' or '.join(choices)}, not {value[:100]!r}")
    return value


def _integer(params: Mapping[str, Any], name: str) -> int | None:
    value = params.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise RequestError(f"{name} must be an integer of at least 1")
    return value


def _object(params: Mapping[str, Any], name: str) -> dict[str, Json]:
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{name} must be an object")
    return cast(dict[str, Json], value)


def _texts(params: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = params.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(item) is str for item in cast(list[Any], value)):
        raise RequestError(f"{name} must be an array of strings")
    return tuple(cast(list[str], value))


def skill_list(
    manifests: Iterable[Manifest], detail: Literal["names", "summary"], next_cursor: str | None
) -> dict[str, Json]:
    """Return the result of `list_skills`: one page, without hidden characters in descriptions."""
    entries: list[Json] = []
    for manifest in manifests:
        entry: dict[str, Json] = {field: manifest.fields[field] for field in ("name", "version")}
        if detail == "summary":
            entry["description"] = hidden.strip(str(manifest.fields["description"]))
            entry |= {field: manifest.fields[field] for field in ("namespace", "kind")}
        entries.append(entry)
    return {"skills": entries, "next_cursor": next_cursor}


def skill_description(
    manifest: Manifest, frontmatter: Mapping[str, Json] | None, content: str | None
) -> dict[str, Json]:
    """Return the result of `describe_skill`, omitting what is None."""
    skill: dict[str, Json] = {"manifest": dict(manifest.fields)}
    if frontmatter is not None:
        skill["skill_md_frontmatter"] = dict(frontmatter)
    if content is not None:
        skill["skill_md_content"] = content
    return {"skill": skill}


def content(text: str) -> dict[str, Json]:
    """Return the result of `read_skill_file` or `load_skills_protocol_guide`."""
    return {"content": text}


class Run(NamedTuple):
    """The result of an execution.

    `summary` is one line for people, `output` the value that the entry point returned,
    `logs_preview` the end of its printed output, `error` type and message of a failure.
    """

    run_id: str
    summary: str
    output: Json = None
    output_blobs: tuple[str, ...] = ()
    logs_preview: str = ""
    error: tuple[str, str] | None = None


def run(done: Run) -> dict[str, Json]:
    """Return the result of `execute_skill` or `run_code`, also for a failed run."""
    out: dict[str, Json] = {
        "status": "completed" if done.error is None else "failed",
        "run_id": done.run_id,
        "summary": done.summary,
        "output": done.output,
        "output_blobs": [*done.output_blobs],
        "logs_preview": done.logs_preview,
    }
    if done.error is None:
        return out
    kind, message = done.error
    return {**out, "error": {"type": kind, "message": message}}


def refusal(kind: str, message: str) -> dict[str, Json]:
    """Return the result of a blob method that failed or is disabled."""
    return {"status": "failed", "summary": message, "error": {"type": kind, "message": message}}


def blob_made(blob_id: str, size: int) -> dict[str, Json]:
    """Return the result of `create_blob`."""
    return {"blob_id": blob_id, "size_bytes": size}


def blob_part(raw: bytes, request: BlobRequest) -> dict[str, Json]:
    """Return the result of `read_blob`: text cut between characters, or base64 for other data."""
    part, is_tail = raw, request.mode == "sample_tail"
    if request.max_bytes is not None and is_tail:
        part = raw[-request.max_bytes :]
    elif request.max_bytes is not None:
        part = raw[: request.max_bytes]
    truncated = len(part) < len(raw)
    for lost in range(4 if truncated else 1):  # bytes of a character that the cut splits
        whole = part[: len(part) - lost]
        if is_tail:
            whole = part[lost:]
        with suppress(UnicodeDecodeError):
            return {"content": whole.decode("utf-8"), "truncated": truncated}
    content = b64encode(part).decode("ascii")
    return {"content": content, "truncated": truncated, "encoding": "base64"}
