"""The APIs that the hosts speak to their model: what a request shows it, read into one form. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Api = Literal["anthropic", "responses", "chat", "gemini"]
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool as the model is shown it. `group` is the namespace that it is called in, where the API has such."""

    name: str
    description: str
    group: str | None = None


@dataclass(frozen=True)
class Seen:
    """What one request shows the model.

    Attributes:
        text: the system prompt, every message that is neither the model's nor a tool's result, and what namespaces of
            tools say of themselves.
        tools: the tools that it may call now.
        results: what its calls gave, in order, as the text that the model reads.
    """

    text: str
    tools: Sequence[Tool]
    results: Sequence[str]


@dataclass(frozen=True)
class Turn:
    """What the model does: one call, or words that end the conversation.

    `kind` is `search` for a call of the API's own search among deferred tools (Responses alone has such a kind).
    """

    text: str = ""
    name: str = ""
    arguments: Body = field(default_factory=dict[str, Any])
    group: str | None = None
    kind: Literal["function", "search"] = "function"


def api_of(path: str) -> Api | None:
    """Which API a POST to this path is of, None for none that asks the model for a turn."""
    plain = path.split("?", maxsplit=1)[0]
    if plain.endswith("/messages"):
        return "anthropic"
    if plain.endswith("/responses"):
        return "responses"
    if plain.endswith("/chat/completions"):
        return "chat"
    return "gemini" if plain.endswith((":generateContent", ":streamGenerateContent")) else None


def read(api: Api, body: Body) -> Seen:
    """What a request shows the model."""
    return {"anthropic": _read_anthropic, "responses": _read_responses, "chat": _read_chat, "gemini": _read_gemini}[
        api
    ](body)


def strings(value: object) -> Iterator[str]:
    """Every `text` of content in any of the forms: a string, a block, a list of blocks."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if isinstance(value.get("text"), str):
            yield value["text"]
        elif "content" in value:
            yield from strings(value["content"])
        elif value.get("type") == "tool_reference":
            yield str(value.get("tool_name", ""))
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def _joined(value: object) -> str:
    return "\n".join(strings(value))


def _read_anthropic(body: Body) -> Seen:
    texts, results = [_joined(body.get("system"))], []
    for message in body.get("messages", ()):
        if message.get("role") == "assistant":
            continue
        blocks = message.get("content")
        for block in blocks if isinstance(blocks, list) else [blocks]:
            if isinstance(block, Mapping) and block.get("type") == "tool_result":
                results.append(_joined(block.get("content")))
            else:
                texts.append(_joined(block))
    tools = [
        Tool(each["name"], each.get("description", ""))
        for each in body.get("tools", ())
        if not each.get("defer_loading")
    ]
    loaded = {name for message in body.get("messages", ()) for name in _references(message.get("content"))}
    tools += [
        Tool(each["name"], each.get("description", ""))
        for each in body.get("tools", ())
        if each.get("defer_loading") and each["name"] in loaded
    ]
    return Seen("\n".join(texts), tools, results)


def _references(value: object) -> Iterator[str]:
    """The deferred tools that a search brought."""
    if isinstance(value, Mapping):
        if value.get("type") == "tool_reference":
            yield str(value.get("tool_name"))
        else:
            yield from _references(value.get("content"))
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _read_responses(body: Body) -> Seen:
    given_tools = body.get("tools", ())
    texts, results, tools = (
        [_joined(body.get("instructions")), _namespaces(given_tools)],
        [],
        list(_callable(given_tools)),
    )
    given = body.get("input", ())
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") != "assistant":
            texts.append(_joined(item.get("content")))
        elif kind in {"function_call_output", "custom_tool_call_output"}:
            results.append(_joined(item.get("output")))
        elif kind == "tool_search_output":
            found = list(_callable(item.get("tools", ())))
            tools += found
            texts.append(_namespaces(item.get("tools", ())))
            results.append("\n".join(f"{tool.group or ''} {tool.name}" for tool in found))
    return Seen("\n".join(texts), tools, results)


def _namespaces(tools: Sequence[Body]) -> str:
    return "\n".join(each.get("description", "") for each in tools if each.get("type") == "namespace")


def _callable(tools: Sequence[Body], group: str | None = None) -> Iterator[Tool]:
    for each in tools:
        if each.get("type") == "namespace":
            yield from _callable(each.get("tools", ()), each.get("name"))
        elif not each.get("defer_loading") or group is not None:
            yield Tool(each.get("name") or each.get("type", ""), each.get("description", ""), group)


def _read_chat(body: Body) -> Seen:
    texts, results = [], []
    for message in body.get("messages", ()):
        if message.get("role") == "tool":
            results.append(_joined(message.get("content")))
        elif message.get("role") != "assistant":
            texts.append(_joined(message.get("content")))
    functions = [each.get("function", {}) for each in body.get("tools") or ()]
    tools = [Tool(each.get("name", ""), each.get("description", "")) for each in functions]
    return Seen("\n".join(texts), tools, results)


def _read_gemini(body: Body) -> Seen:
    texts, results = [_joined((body.get("systemInstruction") or {}).get("parts"))], []
    for content in body.get("contents", ()):
        if content.get("role") == "model":
            continue
        for part in content.get("parts", ()):
            if "functionResponse" in part:
                response = part["functionResponse"].get("response", {})
                output = response.get("output", response)
                results.append(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False))
            else:
                texts.append(_joined(part))
    tools = [
        Tool(each.get("name", ""), each.get("description", ""))
        for group in body.get("tools") or ()
        for each in group.get("functionDeclarations", ())
    ]
    return Seen("\n".join(texts), tools, results)
