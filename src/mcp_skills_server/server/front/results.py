"""What of a result an era knows, in the order in which it is written. Pure tables.

A handler answers both eras with one result; what a revision does not have is left out here. Methods that are not in
a table, such as those for skills, are sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.server.fragments import Fragments, Sieve


def _record(*names: str, **nested: Sieve) -> Sieve:
    """An object's fields with these names that are not null, in alphabetical order, as every revision has them."""
    order = tuple((name, nested.get(name)) for name in sorted({*names, *nested}))

    def sift(value: Any) -> Any:
        out: dict[str, Any] = {}
        for name, inner in order:
            there = value.get(name)
            if there is not None:
                out[name] = there if inner is None else inner(there)
        return out

    return sift


def _every(sieve: Sieve) -> Sieve:
    return lambda values: values.raw(sieve) if isinstance(values, Fragments) else [sieve(each) for each in values]


def _written(sieve: Sieve) -> Sieve:
    """The JSON of an array, written once for as long as it is the same object; nobody changes what is in it."""
    last: tuple[object, bytes] = None, b""

    def sift(values: Any) -> bytes:
        nonlocal last
        kept = last
        if kept[0] is not values:
            kept = last = values, jsonrpc.dump([sieve(each) for each in values])
        return kept[1]

    return sift


def _open(*first: str) -> Sieve:
    """An object of which everything is known; these fields come first."""

    def sift(value: Any) -> Any:
        known = {name: value[name] for name in first if value.get(name) is not None}
        return known | {name: each for name, each in value.items() if name not in first and each is not None}

    return sift


_ICONS: Final = _every(_record("mimeType", "sizes", "src", "theme"))
_ANNOTATIONS: Final = _record("audience", "lastModified", priority=float)
_RESOURCE_FIELDS: Final = ("_meta", "description", "mimeType", "name", "size", "title", "uri")
_RESOURCE: Final = _record(*_RESOURCE_FIELDS, annotations=_ANNOTATIONS, icons=_ICONS)
_CONTENTS: Final = _record("_meta", "blob", "mimeType", "text", "uri")
_BY_TYPE: Final[Mapping[str, Sieve]] = {
    "text": _record("_meta", "text", "type", annotations=_ANNOTATIONS),
    "image": _record("_meta", "data", "mimeType", "type", annotations=_ANNOTATIONS),
    "audio": _record("_meta", "data", "mimeType", "type", annotations=_ANNOTATIONS),
    "resource_link": _record(*_RESOURCE_FIELDS, "type", annotations=_ANNOTATIONS, icons=_ICONS),
    "resource": _record("_meta", "type", annotations=_ANNOTATIONS, resource=_CONTENTS),
}


def _content(value: Any) -> Any:
    return _BY_TYPE[value["type"]](value)


_PROMPT: Final = _record(
    "_meta",
    "description",
    "name",
    "title",
    arguments=_every(_record("description", "name", "required", "title")),
    icons=_ICONS,
)
_TEMPLATE: Final = _record(
    "_meta", "description", "mimeType", "name", "title", "uriTemplate", annotations=_ANNOTATIONS, icons=_ICONS
)
_HINTS: Final = _record("destructiveHint", "idempotentHint", "openWorldHint", "readOnlyHint", "title")


def _tool(schema: tuple[str, ...], output: tuple[str, ...], *more: str) -> Sieve:
    fields = ("_meta", "description", "name", "title", *more)
    return _record(*fields, annotations=_HINTS, icons=_ICONS, inputSchema=_open(*schema), outputSchema=_open(*output))


def _table(shown: tuple[str, ...], cached: tuple[str, ...], tool: Sieve) -> dict[str, Sieve]:
    """The results of an era: `shown` is in each of them, `cached` in those that a client may keep."""
    kept = ("_meta", *shown, *cached)
    return {
        "tools/list": _record(*kept, "nextCursor", tools=_written(tool)),
        "tools/call": _record("_meta", *shown, "isError", "structuredContent", content=_every(_content)),
        "prompts/list": _record(*kept, "nextCursor", prompts=_every(_PROMPT)),
        "prompts/get": _record("_meta", *shown, "description", messages=_every(_record("role", content=_content))),
        "resources/list": _record(*kept, "nextCursor", resources=_every(_RESOURCE)),
        "resources/templates/list": _record(*kept, "nextCursor", resourceTemplates=_every(_TEMPLATE)),
        "resources/read": _record(*kept, contents=_every(_CONTENTS)),
        "completion/complete": _record("_meta", *shown, completion=_record("hasMore", "total", "values")),
    }


_LEGACY_SCHEMA: Final = ("$schema", "properties", "required", "type")
LEGACY: Final[Mapping[str, Sieve]] = _table((), (), _tool(_LEGACY_SCHEMA, _LEGACY_SCHEMA, "execution"))
"""By method of the legacy era what is sent of its result."""
MODERN: Final[Mapping[str, Sieve]] = _table(
    ("resultType",), ("cacheScope", "ttlMs"), _tool(("$schema", "type"), ("$schema",))
)
"""The same of the modern era."""
