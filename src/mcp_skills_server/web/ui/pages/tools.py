"""Tool playground: call a tool as a host would, and show what its model gets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.authoring.context import CONTEXTS, HostContext, ShownText, shown_result
from mcp_skills_server.dialects import runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.web.ui.addresses import choice_of
from mcp_skills_server.web.ui.context import Argument, Context

TOOLS: Final = (runtime.SEARCH, runtime.LOAD, runtime.READ, runtime.LIST)
"""The tools without side effects."""
_HIDDEN: Final = frozenset((runtime.SESSION, runtime.CONVERSATION))
_MAX_LENGTH: Final = 4_000
"""Characters of an argument."""


class ToolAnswer(NamedTuple):
    """A tool call and its result, as JSON, and what the host shows its model of the result."""

    call: str
    raw: str
    shown: ShownText
    is_error: bool


async def page(request: Request, ctx: Context) -> Response:
    """Return the view, with the result if a tool is called."""
    query, answer = request.query_params, None
    tool = choice_of(query, "tool", TOOLS, TOOLS[0])
    host = choice_of(query, "host", CONTEXTS, next(iter(CONTEXTS)))
    schema: Any = runtime.argument_schemas()[tool]
    arguments = [
        Argument(
            name,
            str(rules.get("description", "")),
            name in schema.get("required", ()),
            query.get(f"arg.{name}", "")[:_MAX_LENGTH].strip(),
            rules.get("enum", ()),
        )
        for name, rules in schema["properties"].items()
        if name not in _HIDDEN
    ]
    if "call" in query and query.get("tool") == tool and ctx.site.settings.tools:
        given = {
            argument.name: _value(argument.value, schema["properties"][argument.name].get("type"))
            for argument in arguments
            if argument.value
        }
        answer = await _call(ctx, tool, given, CONTEXTS[host])
    return ctx.page(
        "tools.html",
        tools=TOOLS,
        tool=tool,
        hosts=[*CONTEXTS],
        host=host,
        arguments=arguments,
        answer=answer,
    )


async def _call(
    ctx: Context, tool: str, arguments: Mapping[str, Any], host: HostContext
) -> ToolAnswer:
    """Call a tool in a new session. Before a file is read its skill is loaded, as models do."""
    async with Session(ctx.offering, hosted=False) as session:
        if tool == runtime.READ and "skill" in arguments:
            names = {"names": [arguments["skill"]]}
            await session.call(runtime.LOAD, names, client=host.client)
        result = await session.call(tool, dict(arguments), client=host.client)
    raw = json.dumps(result, ensure_ascii=False, indent=2)
    called = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    shown = shown_result("", result, host)
    return ToolAnswer(called, raw, shown, bool(result.get("isError")))


def _value(text: str, kind: object) -> Any:
    """Convert a form field to this argument type. The tool reports invalid values."""
    if kind == "array":
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind == "integer" and text.isdecimal() and len(text) < 10:
        return int(text)
    if kind == "boolean":
        return text == "true"
    return text
