"""The APIs that the hosts speak to their model: a request read into one form, a turn of the model written into each.

Pure: bytes and values in, bytes and values out. What is written is the least that the hosts accept, streamed where the
request asks for a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Api = Literal["anthropic", "responses", "chat", "gemini"]
Body = Mapping[str, Any]
MODEL: Final = "scripted"


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


def write(api: Api, path: str, body: Body, turn: Turn, number: int) -> tuple[str, bytes]:
    """The answer's content type and bytes. `number` tells calls of one conversation apart."""
    if api == "gemini":
        streams = ":streamGenerateContent" in path
        answer = _gemini(turn)
        return _sse([(None, answer)]) if streams else _json(answer)
    if api == "anthropic":
        message = _anthropic(turn, number)
        return _sse(_anthropic_events(message)) if body.get("stream") else _json(message)
    if api == "chat":
        return _sse(_chat_events(turn, number)) if body.get("stream") else _json(_chat(turn, number))
    response = _responses(turn, number)
    return _sse(_responses_events(response)) if body.get("stream") else _json(response)


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


def _json(value: object) -> tuple[str, bytes]:
    return "application/json", json.dumps(value).encode()


def _sse(events: Sequence[tuple[str | None, object]]) -> tuple[str, bytes]:
    out = ""
    for name, data in events:
        said = data if isinstance(data, str) else json.dumps(data)
        out += f"event: {name}\ndata: {said}\n\n" if name else f"data: {said}\n\n"
    return "text/event-stream", out.encode()


def _anthropic(turn: Turn, number: int) -> dict[str, Any]:
    block = (
        {"type": "tool_use", "id": f"toolu_{number:08}", "name": turn.name, "input": turn.arguments}
        if turn.name
        else {"type": "text", "text": turn.text}
    )
    return {
        "id": f"msg_{number:08}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [block],
        "stop_reason": "tool_use" if turn.name else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _anthropic_events(message: Body) -> list[tuple[str | None, object]]:
    block = message["content"][0]
    if block["type"] == "tool_use":
        start = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
    begun = {**message, "content": [], "stop_reason": None}
    events = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": start},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    return [(str(event["type"]), event) for event in events]


def _responses(turn: Turn, number: int) -> dict[str, Any]:
    item: dict[str, Any]
    if not turn.name:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        item = {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    elif turn.kind == "search":
        item = {
            "type": "tool_search_call",
            "id": f"ts_{number}",
            "call_id": f"call_{number}",
            "status": "completed",
            "execution": "client",
            "arguments": turn.arguments,
        }
    else:
        item = {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": turn.name,
            "arguments": json.dumps(turn.arguments),
            "status": "completed",
            **({"namespace": turn.group} if turn.group else {}),
        }
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    return {
        "id": f"resp_{number}",
        "object": "response",
        "model": MODEL,
        "status": "completed",
        "output": [item],
        "usage": usage,
    }


def _responses_events(response: Body) -> list[tuple[str | None, object]]:
    item = response["output"][0]
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    return [(str(event["type"]), {**event, "sequence_number": number}) for number, event in enumerate(events)]


def _chat_message(turn: Turn, number: int) -> dict[str, Any]:
    if not turn.name:
        return {"role": "assistant", "content": turn.text}
    function = {"name": turn.name, "arguments": json.dumps(turn.arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}],
    }


def _chat(turn: Turn, number: int) -> dict[str, Any]:
    reason = "tool_calls" if turn.name else "stop"
    choice = {"index": 0, "message": _chat_message(turn, number), "finish_reason": reason}
    return {**_chat_head(number, "chat.completion"), "choices": [choice], "usage": _CHAT_USAGE}


def _chat_events(turn: Turn, number: int) -> list[tuple[str | None, object]]:
    head = _chat_head(number, "chat.completion.chunk")
    reason = "tool_calls" if turn.name else "stop"
    first = {"index": 0, "delta": _chat_message(turn, number), "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": reason}
    return [
        (None, {**head, "choices": [first]}),
        (None, {**head, "choices": [last], "usage": _CHAT_USAGE}),
        (None, "[DONE]"),
    ]


_CHAT_USAGE: Final = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _chat_head(number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": MODEL}


def _gemini(turn: Turn) -> dict[str, Any]:
    part = {"functionCall": {"name": turn.name, "args": turn.arguments}} if turn.name else {"text": turn.text}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": MODEL}
