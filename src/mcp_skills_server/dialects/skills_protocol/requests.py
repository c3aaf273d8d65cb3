"""What the methods of the Skills Protocol take: each one's params, checked by name and type.

Null counts as left out, and a name that is not ours is passed over, for the protocol may grow. Checked by hand: a
schema says the same with jsonschema in 15 times the time a call, and costs the start of the process an import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import Json

PAGE: Final = 50
LARGEST_PAGE: Final = 1000
"""More than this are not sent at once, whatever the limit says."""
SAMPLE_BYTES: Final = 4096
"""What `read_blob` samples by default."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Params of `list_skills`.

    Attributes:
        namespace: only skills of it; None for all.
        detail: how much of each.
        limit: entries of the page.
        cursor: where to go on.
    """

    namespace: str | None
    detail: Literal["names", "summary"]
    limit: int
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Description:
    """Params of `describe_skill`.

    Attributes:
        name: the skill.
        version: which one; None for the latest.
        detail: how much.
    """

    name: str
    version: str | None
    detail: Literal["manifest", "summary", "full"]


@dataclass(frozen=True, slots=True)
class FileRequest:
    """Params of `read_skill_file`.

    Attributes:
        name: the skill.
        version: which one; None for the latest.
        path: the file's path in it, not checked yet.
    """

    name: str
    version: str | None
    path: str


@dataclass(frozen=True, slots=True)
class Execution:
    """Params of `execute_skill`.

    Attributes:
        name: the skill.
        version: which one; None for the latest.
        args: what its entry point is given.
        input_blobs: identifiers of blobs that it may read.
        timeout_ms: milliseconds; None for the operator's.
    """

    name: str
    version: str | None
    args: Mapping[str, Json]
    input_blobs: tuple[str, ...]
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class CodeExecution:
    """Params of `run_code`.

    Attributes:
        language: which one, in lower case.
        code: the program.
        entrypoint: the function in it to call; None to run it as a program.
        args: what it is given.
        mount_skills: names of skills whose files it may read.
        input_blobs: identifiers of blobs that it may read.
        timeout_ms: milliseconds; None for the operator's.
    """

    language: str
    code: str
    entrypoint: str | None
    args: Mapping[str, Json]
    mount_skills: tuple[str, ...]
    input_blobs: tuple[str, ...]
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """Params of `read_blob`.

    Attributes:
        blob_id: the blob.
        mode: which part of it.
        max_bytes: of what size, at most.
    """

    blob_id: str
    mode: Literal["sample_head", "sample_tail", "full"]
    max_bytes: int | None


def listing(params: Mapping[str, Any]) -> Listing:
    """Return what a call of `list_skills` asks for.

    Raises:
        RequestError: a param is not what it must be. So do all functions of this kind.
    """
    detail = _choice(params, "detail", ("names", "summary"), "names")
    limit = _integer(params, "limit", PAGE)
    # A namespace of "" comes from clients that fill in what they leave out; no skill's namespace is asked for so.
    return Listing(
        _text(params, "namespace") or None,
        cast(Literal["names", "summary"], detail),
        min(PAGE if limit is None else limit, LARGEST_PAGE),
        _text(params, "cursor"),
    )


def description(params: Mapping[str, Any]) -> Description:
    """Return what a call of `describe_skill` asks for. Raises as `listing`."""
    name, version = _needed(params, "name"), _text(params, "version")
    detail = _choice(params, "detail", ("manifest", "summary", "full"), "summary")
    return Description(name, version, cast(Literal["manifest", "summary", "full"], detail))


def file_request(params: Mapping[str, Any]) -> FileRequest:
    """Return what a call of `read_skill_file` asks for. Raises as `listing`."""
    return FileRequest(_needed(params, "name"), _text(params, "version"), _needed(params, "path"))


def execution(params: Mapping[str, Any]) -> Execution:
    """Return what a call of `execute_skill` asks for. Raises as `listing`."""
    return Execution(
        _needed(params, "name"),
        _text(params, "version"),
        _object(params, "args"),
        _texts(params, "input_blobs"),
        _integer(params, "timeout_ms", None),
    )


def code_execution(params: Mapping[str, Any]) -> CodeExecution:
    """Return what a call of `run_code` asks for. Raises as `listing`."""
    return CodeExecution(
        _needed(params, "language").lower(),
        _needed(params, "code"),
        _text(params, "entrypoint") or None,
        _object(params, "args"),
        _texts(params, "mount_skills"),
        _texts(params, "input_blobs"),
        _integer(params, "timeout_ms", None),
    )


def blob_content(params: Mapping[str, Any]) -> tuple[str, str]:
    """Content and media type of a call of `create_blob`. Raises as `listing`."""
    content = _text(params, "content")
    if content is None:
        raise RequestError("content is missing; give the text to keep")
    return content, _text(params, "kind") or "text/plain"


def blob_request(params: Mapping[str, Any]) -> BlobRequest:
    """Return what a call of `read_blob` asks for. Raises as `listing`."""
    mode = _choice(params, "mode", ("sample_head", "sample_tail", "full"), "sample_head")
    most = _integer(params, "max_bytes", None if mode == "full" else SAMPLE_BYTES)
    blob_id = _needed(params, "blob_id")
    return BlobRequest(blob_id, cast(Literal["sample_head", "sample_tail", "full"], mode), most)


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


def _choice(params: Mapping[str, Any], name: str, choices: Sequence[str], default: str) -> str:
    value = _text(params, name)
    if value is None:
        return default
    if value not in choices:
        raise RequestError(f"{name} must be {' or '.join(choices)}, not {value[:100]!r}")
    return value


def _integer(params: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = params.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 1:
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
    if not isinstance(value, list) or not all(isinstance(each, str) for each in cast(list[Any], value)):
        raise RequestError(f"{name} must be an array of strings")
    return tuple(cast(list[str], value))
