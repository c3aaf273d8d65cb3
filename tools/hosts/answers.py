"""A turn of the model, written as each API has it: the least that hosts accept, streamed where they ask so. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tools.hosts.apis import Api, Body, Turn

MODEL: Final = "scripted"


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
