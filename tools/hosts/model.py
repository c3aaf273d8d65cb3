"""The scripted model: an HTTP server on loopback with the APIs of the hosts, and its conversation."""

from __future__ import annotations

import gzip
import json
import re
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal

Api = Literal["anthropic", "responses", "chat", "gemini"]
Body = Mapping[str, Any]
_Answer = tuple[dict[str, Any], Sequence[dict[str, Any] | str]]
"""A complete response, and the same as the events of a stream."""


@dataclass(frozen=True)
class Tool:
    """A tool as it is shown to the model.

    `group` is its namespace, if the API has namespaces. `bridge` is the host's tool that calls it, if only a search
    returns it.
    """

    name: str
    description: str
    group: str | None = None
    bridge: str | None = None


@dataclass(frozen=True)
class Seen:
    """The content of a request to the model.

    Attributes:
        text: the system prompt, all messages but those of the model and results of tools, and the descriptions of
            namespaces.
        tools: the tools that the model may call now.
        results: the results of its calls, in order, as the text that the model reads.
    """

    text: str
    tools: Sequence[Tool]
    results: Sequence[str]


@dataclass(frozen=True)
class Turn:
    """A turn of the model: one call, or a text that ends the conversation.

    `kind` is `search` for a call of the API's own search among deferred tools (only Responses has this kind).
    """

    text: str = ""
    name: str = ""
    arguments: Body = field(default_factory=dict[str, Any])
    group: str | None = None
    kind: Literal["function", "search"] = "function"


def api_of(path: str) -> Api | None:
    """Return the API of a POST to this path, or None if it requests no turn."""
    plain = path.split("?", maxsplit=1)[0]
    if plain.endswith("/messages"):
        return "anthropic"
    if plain.endswith("/responses"):
        return "responses"
    if plain.endswith("/chat/completions"):
        return "chat"
    return "gemini" if plain.endswith((":generateContent", ":streamGenerateContent")) else None


def read_request(api: Api, body: Body) -> Seen:
    return {"anthropic": _read_anthropic, "responses": _read_responses, "chat": _read_chat, "gemini": _read_gemini}[
        api
    ](body)


def strings(value: object) -> Iterator[str]:
    """Yield every `text` of content in any form: a string, a block, a list of blocks."""
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
    """Yield the deferred tools that a search returned."""
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
    if any(tool.name == _BRIDGE for tool in tools):
        tools += [tool for result in results for tool in _reviewed(result)]
    return Seen("\n".join(texts), tools, results)


_BRIDGE: Final = "tool_call"
"""Qwen Code's tool that calls a tool which its `tool_search` returned."""
_REVIEWED: Final = re.compile(r"<function>(\{.*\})</function>")


def _reviewed(result: str) -> Iterator[Tool]:
    """Yield the tools in the result of Qwen Code's search, which it does not add to the list of tools."""
    if result.startswith("<functions>"):
        for found in _REVIEWED.finditer(result):
            schema = json.loads(found[1])
            yield Tool(schema["name"], schema.get("description", ""), bridge=_BRIDGE)


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


MODEL: Final = "scripted"


def write_answer(api: Api, path: str, body: Body, turn: Turn, number: int) -> tuple[str, bytes]:
    """Return the response's content type and bytes. `number` identifies a call in the conversation."""
    writers = {"anthropic": _anthropic, "responses": _responses, "chat": _chat, "gemini": _gemini}
    whole, events = writers[api](turn, number)
    if not (body.get("stream") or ":streamGenerateContent" in path):
        return "application/json", json.dumps(whole).encode()
    out = ""
    for event in events:
        named = isinstance(event, dict) and "type" in event
        data = event if isinstance(event, str) else json.dumps(event)
        out += f"event: {event['type']}\ndata: {data}\n\n" if named else f"data: {data}\n\n"
    return "text/event-stream", out.encode()


def _anthropic(turn: Turn, number: int) -> _Answer:
    reason = "tool_use" if turn.name else "end_turn"
    if turn.name:
        start: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{number:08}", "name": turn.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(turn.arguments)}
        block = {**start, "input": turn.arguments}
    else:
        start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": turn.text}
        block = {**start, "text": turn.text}
    begun = {"id": f"msg_{number:08}", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    begun |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    ended = {"stop_reason": reason, "stop_sequence": None}
    return {**begun, "content": [block], "stop_reason": reason}, [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": start},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


def _responses(turn: Turn, number: int) -> _Answer:
    item: dict[str, Any] = {"status": "completed"}
    if not turn.name:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        item |= {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
    elif turn.kind == "search":
        item |= {"type": "tool_search_call", "id": f"ts_{number}", "call_id": f"call_{number}", "execution": "client"}
        item |= {"arguments": turn.arguments}
    else:
        item |= {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": turn.name}
        item |= {"arguments": json.dumps(turn.arguments), **({"namespace": turn.group} if turn.group else {})}
    usage = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1, "total_tokens": 2}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    begun = {"id": f"resp_{number}", "object": "response", "model": MODEL, "status": "in_progress", "output": []}
    whole = {**begun, "status": "completed", "output": [item], "usage": usage}
    events = [
        {"type": "response.created", "response": {**begun, "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return whole, [{**event, "sequence_number": order} for order, event in enumerate(events)]


def _chat(turn: Turn, number: int) -> _Answer:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.name:
        function = {"name": turn.name, "arguments": json.dumps(turn.arguments)}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    end = {"index": 0, "finish_reason": "tool_calls" if turn.name else "stop"}
    whole = {**head, "object": "chat.completion", "choices": [{**end, "message": message}], "usage": usage}
    first = {"index": 0, "delta": message, "finish_reason": None}
    return whole, [{**head, "choices": [first]}, {**head, "choices": [{**end, "delta": {}}], "usage": usage}, "[DONE]"]


def _gemini(turn: Turn, _number: int) -> _Answer:
    part = {"functionCall": {"name": turn.name, "args": turn.arguments}} if turn.name else {"text": turn.text}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": MODEL}
    return whole, [whole]


NEEDED: Final = ("skills_search", "skills_load", "skills_read")
FREE: Final = "skills search load read"
"""The query of a model that does not know the tools' names."""
SEARCHES: Final = 6
SEARCH_AGAIN: Final = ""
"""The tool of a step that searches the deferred tools again, if the host defers tools."""
_SESSION: Final = re.compile(r'(?:"session":\s*"|Session: )([^\s"]+)')
"""The session in a result of skills_load, structured or as text."""


@dataclass(frozen=True)
class Step:
    """A call of one of our tools, and an action before it."""

    label: str
    tool: str
    arguments: Mapping[str, Any]
    before: Callable[[], None] | None = None


@dataclass
class Script:
    """A conversation: find the tools, take the steps, end.

    Attributes:
        ready: waits until the servers have listed their tools; returns whether they have.
        servers: the number of our servers. A host may know the tools of some only at its next request.
        first: the first request.
        equipped: the first request with our tools, if any.
        deferred: the last request before `equipped`, if our tools had to be searched for.
        found: the number of our tools that a free search among deferred ones returned; None without a search.
        offered: the tools of the request after that search.
        answers: the results that the model got, by the steps' labels.
        after: the request with that result.
    """

    steps: deque[Step]
    ready: Callable[[], bool]
    servers: int = 1
    first: Seen | None = None
    equipped: Seen | None = None
    deferred: Seen | None = None
    found: int | None = None
    offered: Sequence[Tool] = ()
    answers: dict[str, str] = field(default_factory=dict[str, str])
    after: dict[str, Seen] = field(default_factory=dict[str, Seen])
    _turns: dict[int, Turn] = field(default_factory=dict[int, Turn])
    _pending: str = ""
    _session: str = ""
    _searched: int = 0
    _free: bool = False

    def decide(self, seen: Seen) -> Turn:
        """Return the next turn. A repeated request gets the same one."""
        number = len(seen.results)
        if number not in self._turns:
            if self.first is None:
                self.first = seen
            if self._pending:
                self.answers[self._pending], self.after[self._pending] = seen.results[-1], seen
                self._pending = ""
                session = _SESSION.search(seen.results[-1])
                self._session = session[1] if session else self._session
            self._turns[number] = self._next(seen)
        return self._turns[number]

    def _next(self, seen: Seen) -> Turn:
        tools = ours(seen.tools)
        # The tools of this request show what the search returned.
        if self._free and self.equipped is None:
            self.found, self.offered = len(tools), seen.tools
            if len(servers_of(seen.tools)) < self.servers and self._searched < SEARCHES:
                self.found = None
                return self._search(seen)
        if not all(name in tools for name in NEEDED):
            return self._search(seen)
        if self.equipped is None:
            self.equipped = seen
        if self.steps and self.steps[0].tool == SEARCH_AGAIN:
            self.steps.popleft()
            search = _search_turn(seen, exact=True)
            if search is not None:
                return search
        if not self.steps:
            return Turn("The conversation is over.")
        step = self.steps.popleft()
        if step.before is not None:
            step.before()
        self._pending = step.label
        tool = tools[step.tool]
        handle = {"session": self._session} if self._session and step.tool == "skills_read" else {}
        arguments = {**step.arguments, **handle}
        if tool.bridge is not None:
            return Turn(name=tool.bridge, arguments={"name": tool.name, "arguments": arguments})
        return Turn(name=tool.name, arguments=arguments, group=tool.group)

    def _search(self, seen: Seen) -> Turn:
        self._searched += 1
        # Search freely first; if that returned only some tools, search exactly to measure the rest.
        exact = bool(self.found)
        turn = _search_turn(seen, exact=exact) if self._searched <= SEARCHES and self.ready() else None
        self._free = turn is not None and not exact
        self.deferred = seen if turn is not None else None
        return turn or Turn("There are no skills here.")


def _search_turn(seen: Seen, *, exact: bool) -> Turn | None:
    """Return a search among deferred tools in the form of the host, or None if it has none."""
    names = {tool.name for tool in seen.tools}
    if "tool_search" in names and _BRIDGE not in names:
        query = " ".join(NEEDED) if exact else FREE
        return Turn(name="tool_search", arguments={"query": query, "limit": 8}, kind="search")
    name = next((name for name in ("ToolSearch", "tool_search") if name in names), None)
    if name is None:
        return None
    query = "select:" + ",".join(f"mcp__skills__{needed}" for needed in NEEDED) if exact else FREE
    return Turn(name=name, arguments={"query": query, "max_results": 10})


_OURS: Final = re.compile(r"skills_(?:list|search|load|unload|read|run_script|propose|proposals)\Z")


def ours(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return our tools by our own names, without the host's prefix."""
    return {match[0]: tool for tool in tools if (match := _OURS.search(tool.name))}


def servers_of(tools: Iterable[Tool]) -> set[tuple[str | None, str]]:
    """Return the namespaces and prefixes by which a host tells our servers apart."""
    return {(tool.group, tool.name[: match.start()]) for tool in tools if (match := _OURS.search(tool.name))}


@dataclass
class Model:
    """The bodies of the POST requests so far, and the function that decides the next turn."""

    decide: Callable[[Seen], Turn]
    bodies: list[Any] = field(default_factory=list[Any])
    faults: list[str] = field(default_factory=list[str])
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""


@contextmanager
def serving(decide: Callable[[Seen], Turn]) -> Iterator[Model]:
    """Serve the model on a free port of loopback until the block ends."""
    model = Model(decide)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if "/models" in self.path:
                self._answer("application/json", b'{"object":"list","data":[],"models":[]}')
            else:
                self._answer("application/json", b"{}", 404)

        def do_HEAD(self) -> None:
            self._answer("application/json", b"")

        def do_POST(self) -> None:
            raw = self._body()
            try:
                body = json.loads(raw)
            except ValueError:
                body = None
            api = api_of(self.path) if isinstance(body, dict) else None
            try:
                with model.lock:
                    self._turn(api, body)
            except Exception as error:  # any request of a host; the run reports it
                model.faults.append(f"{self.path}: {error!r}")
                self._answer("application/json", b'{"error":{"message":"the scripted model failed"}}', 400)

        def _turn(self, api: Api | None, body: Any) -> None:
            model.bodies.append(body)
            if api is None:
                self._answer("application/json", b'{"input_tokens":1,"totalTokens":1}')
                return
            seen = read_request(api, body)
            # Requests without tools, such as for a title, take no turn of the conversation.
            turn = model.decide(seen) if seen.tools else Turn("{}")
            self._answer(*write_answer(api, self.path, body, turn, len(model.bodies)))

        def _body(self) -> bytes:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                raw = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    raw += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            encoding = self.headers.get("Content-Encoding", "")
            if encoding == "gzip":
                return gzip.decompress(raw)
            return zlib.decompress(raw) if encoding == "deflate" else raw

        def _answer(self, kind: str, raw: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
