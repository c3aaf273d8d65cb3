"""Validation of tool arguments against their JSON schema, and look-up of paths in a skill."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.dialects import runtime
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import uris
from mcp_skills_server.format.nearest import nearest
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import Skill, printable

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_MAX_SHOWN: Final = 400
"""The maximum number of characters of a validation error that are shown."""
_SUGGESTED: Final = 3
_SHOWN_PATHS: Final = 40


def path_in(skill: Skill, wanted: str, paths: Sequence[str], below: str = "") -> str:
    """Return the element of `paths` that `wanted` names, as a relative path or a URI.

    Raises:
        RequestError: none matches. The message lists the files, or the nearest ones.
    """
    plain = wanted.removeprefix(uri(skill.path) + "/").removeprefix("./")
    if plain in paths:
        return plain
    located = "/".join(uris.segments(wanted) or ())
    if located.startswith(f"{skill.path}/") and located[len(skill.path) + 1 :] in paths:
        return located[len(skill.path) + 1 :]
    kind = "file"
    if below:
        kind = f"file below {below}"
    problem, lead, near = f"is not a {kind} of the skill {skill.name}", "there is", list(paths)
    folder = plain.rstrip("/") + "/"
    if inside := [path for path in paths if path.startswith(folder)]:
        problem, near = "is a directory", inside
    elif close := nearest(plain, paths, _SUGGESTED):
        lead, near = "nearest", close
    if not near:
        raise RequestError(f"{wanted[:200]!r} {problem}; it has no {kind}")
    shown = ", ".join(near[:_SHOWN_PATHS])
    if len(near) > _SHOWN_PATHS:
        shown += " ..."
    raise RequestError(f"{wanted[:200]!r} {problem}; {lead}: {shown}")


@cache
def _validators() -> dict[str, Draft202012Validator]:
    from jsonschema import Draft202012Validator

    schemas = runtime.argument_schemas()
    return {tool: Draft202012Validator(schemas[tool]) for tool in schemas}  # pyright: ignore[reportArgumentType]


def invalid_arguments(tool: str, given: Mapping[str, Any]) -> str | None:
    """Return the first error of the arguments, with the tool's parameters; None if valid."""
    validator: Any = _validators()[tool]  # its stubs are incomplete
    schema: dict[str, Any] = validator.schema
    required = schema.get("required", ())
    marks = dict.fromkeys(required, " (required)")
    taken = ", ".join(f"{key}{marks.get(key, '')}" for key in schema["properties"])
    try:
        error: Any = next(validator.iter_errors(dict(given)), None)
        if error is None:
            return None
        text: str = error.message
        if not isinstance(error.instance, str):  # in JSON, where Python has None and True
            shown = json.dumps(error.instance, ensure_ascii=False, default=repr)
            text = text.replace(repr(error.instance), shown, 1)
    except RecursionError:
        return f"The arguments are nested too deeply. {tool} takes: {taken}"
    where = printable(".".join(map(str, error.absolute_path)))[:100]
    if len(text) > _MAX_SHOWN:  # jsonschema puts the value first and the reason last
        half = _MAX_SHOWN // 2
        text = f"... {text[-half:]} ({error.validator}: {str(error.validator_value)[:half]})"
    if where:
        text = f"Argument {where}: {text}"
    return f"{text}. {tool} takes: {taken}"
