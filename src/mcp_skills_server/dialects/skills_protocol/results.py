"""What the methods of the Skills Protocol answer: plain dicts with exactly the protocol's fields."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mcp_skills_server.dialects.skills_protocol.requests import BlobRequest
from mcp_skills_server.format import hidden
from mcp_skills_server.format.manifest import Manifest
from mcp_skills_server.model import Json


def skill_list(
    manifests: Iterable[Manifest], detail: Literal["names", "summary"], next_cursor: str | None
) -> dict[str, Json]:
    """Return a page of skills. Hidden characters of descriptions are left out."""
    fields = ("name", "version") if detail == "names" else ("name", "version", "description", "namespace", "kind")
    entries: list[Json] = [
        {field: _seen(each.fields[field]) if field == "description" else each.fields[field] for field in fields}
        for each in manifests
    ]
    return {"skills": entries, "next_cursor": next_cursor}


def _seen(value: Json) -> Json:
    return hidden.without(value) if isinstance(value, str) else value


def skill_description(
    manifest: Manifest, frontmatter: Mapping[str, Json] | None, content: str | None
) -> dict[str, Json]:
    """Return a skill; what is None is left out."""
    skill: dict[str, Json] = {"manifest": dict(manifest.fields)}
    if frontmatter is not None:
        skill["skill_md_frontmatter"] = dict(frontmatter)
    if content is not None:
        skill["skill_md_content"] = content
    return {"skill": skill}


def content(text: str) -> dict[str, Json]:
    """Return a file, or the guide."""
    return {"content": text}


@dataclass(frozen=True, slots=True)
class Run:
    """What came of an execution.

    Attributes:
        run_id: names it.
        summary: one line for people.
        output: what the entry point returned.
        output_blobs: identifiers of what it left as blobs.
        logs_preview: the end of what it printed.
        error: type and message of what went wrong; None if nothing did.
    """

    run_id: str
    summary: str
    output: Json = None
    output_blobs: tuple[str, ...] = ()
    logs_preview: str = ""
    error: tuple[str, str] | None = None


def run(done: Run) -> dict[str, Json]:
    """The result of a call that ran something. A run that failed is a result, too: the call itself was in order."""
    out: dict[str, Json] = {
        "status": "completed" if done.error is None else "failed",
        "run_id": done.run_id,
        "summary": done.summary,
        "output": done.output,
        "output_blobs": [*done.output_blobs],
        "logs_preview": done.logs_preview,
    }
    return out if done.error is None else {**out, "error": _error(*done.error)}


def refusal(kind: str, message: str) -> dict[str, Json]:
    """Return what a blob method answers that does not do its work."""
    return {"status": "failed", "summary": message, "error": _error(kind, message)}


def blob_made(blob_id: str, size: int) -> dict[str, Json]:
    """Return a new blob."""
    return {"blob_id": blob_id, "size_bytes": size}


def blob_part(raw: bytes, request: BlobRequest) -> dict[str, Json]:
    """Return the part of a blob that is asked for, cut between characters. What is no text comes in base64."""
    most = len(raw) if request.max_bytes is None else request.max_bytes
    tail = request.mode == "sample_tail"
    part = raw[-most:] if tail else raw[:most]
    truncated = len(part) < len(raw)
    text = _decoded(part, tail=tail) if truncated else _whole(part)
    if text is None:
        return {"content": b64encode(part).decode("ascii"), "truncated": truncated, "encoding": "base64"}
    return {"content": text, "truncated": truncated}


def _whole(raw: bytes) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _decoded(part: bytes, *, tail: bool) -> str | None:
    """As text; a character that the cut went through is left out."""
    cut: Callable[[int], bytes] = (lambda n: part[n:]) if tail else (lambda n: part[: len(part) - n])
    return next((text for n in range(4) if (text := _whole(cut(n))) is not None), None)


def _error(kind: str, message: str) -> dict[str, Json]:
    return {"type": kind, "message": message}
