"""Try a tool: call it as a host would, and see what its model gets back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.authoring.context import HOSTS
from mcp_skills_server.authoring.tokens import estimated
from mcp_skills_server.dialects import runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.web.ui.look import Look

TOOLS: Final = (runtime.SEARCH, runtime.LOAD, runtime.READ, runtime.LIST)
"""The tools that leave nothing behind."""
_HIDDEN: Final = frozenset((runtime.SESSION, runtime.CONVERSATION))
_LONGEST: Final = 4_000
"""Characters of an argument."""
_MOST_SHOWN: Final = 200_000


@dataclass(frozen=True, slots=True)
class ToolArgument:
    """An argument of a tool, with what was given for it.

    Attributes:
        name: of the argument.
        words: what it is.
        is_required: whether the tool needs it.
        choices: the only values that it may have; none for any.
        value: as it was given.
    """

    name: str
    words: str
    is_required: bool
    choices: Sequence[str]
    value: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call.

    Attributes:
        call: the arguments as JSON.
        raw: the result as JSON, as it is sent.
        text: what of it a model reads where its host shows the text.
        is_error: whether the model has to do something else.
    """

    call: str
    raw: str
    text: str
    is_error: bool

    @property
    def tokens(self) -> int:
        """Estimate the tokens of the text."""
        return estimated(self.text)


async def page(request: Request, look: Look) -> Response:
    """Return the view, with the answer where a tool is called."""
    query = request.query_params
    tool = query.get("tool", "")
    tool = tool if tool in TOOLS else TOOLS[0]
    host = query.get("host", "")
    host = host if host in HOSTS else next(iter(HOSTS))
    arguments = arguments_of(tool, query)
    answer = None
    if "call" in query and query.get("tool") in TOOLS and look.site.settings.tools:
        answer = await _call(
            look, tool, {each.name: each.value for each in arguments if each.value}, HOSTS[host].client
        )
    return look.page(
        "tools.html", tools=TOOLS, tool=tool, hosts=[*HOSTS], host=host, arguments=arguments, answer=answer
    )


def arguments_of(tool: str, given: QueryParams) -> list[ToolArgument]:
    """Return the arguments that a tool takes from a model."""
    schema: Any = runtime.argument_schemas()[tool]
    found: list[ToolArgument] = []
    for name, rules in schema["properties"].items():
        if name not in _HIDDEN:
            words, required = str(rules.get("description", "")), name in schema.get("required", ())
            value = given.get(f"arg.{name}", "")[:_LONGEST].strip()
            found.append(ToolArgument(name, words, required, rules.get("enum", ()), value))
    return found


async def _call(look: Look, tool: str, given: Mapping[str, str], client: str) -> Answer:
    """Call a tool in a session of its own; a file is read of a skill that is loaded first, as a model does."""
    schema: Any = runtime.argument_schemas()[tool]
    properties = schema["properties"]
    arguments: dict[str, Any] = {name: _value(value, properties[name].get("type")) for name, value in given.items()}
    async with Session(look.runtime, hosted=False) as session:
        if tool == runtime.READ and "skill" in arguments:
            await session.call(runtime.LOAD, {"names": [arguments["skill"]]}, client=client, of=look.runtime)
        result = await session.call(tool, arguments, client=client, of=look.runtime)
    text = "\n".join(str(block.get("text", "")) for block in result["content"])
    raw = json.dumps(result, ensure_ascii=False, indent=2)
    called = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return Answer(called, raw[:_MOST_SHOWN], text[:_MOST_SHOWN], bool(result.get("isError")))


def _value(text: str, kind: object) -> Any:
    """Return what a text of the form means for an argument of this type; the tool says what is wrong with it."""
    if kind == "array":
        return [each.strip() for each in text.split(",") if each.strip()]
    if kind == "integer" and text.isdecimal() and len(text) < 10:
        return int(text)
    if kind == "boolean":
        return text == "true"
    return text
