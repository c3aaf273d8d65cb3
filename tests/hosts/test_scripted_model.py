"""The scripted model of `make hosts`: the shapes of four APIs, and the conversation that it has (tools/hosts)."""

from __future__ import annotations

import json
from collections import deque
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from tools.hosts.model import FREE, NEEDED, Api, Script, Seen, Step, Tool, Turn, read_request, serving

from tables import each_row
from wire import DEADLINE

CALL = Turn(name="skills_load", arguments={"names": ["ä"]})
PATHS: dict[Api, str] = {
    "anthropic": "/v1/messages?beta=true",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
}


def text(words: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": words}


LOAD_TOOL = {"name": "mcp__skills__skills_load", "description": "LOADS"}
# The same conversation in each API: instructions, a question, a call, its result; one tool of ours.
BODIES: dict[Api, dict[str, Any]] = {
    "anthropic": {
        "stream": True,
        "system": [text("INSTRUCTIONS")],
        "tools": [{**LOAD_TOOL, "input_schema": {}}],
        "messages": [
            {"role": "user", "content": [text("QUESTION")]},
            {"role": "assistant", "content": [text("MINE"), {"type": "tool_use", "id": "1"}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [text("RESULT")]},
                    text("REMINDER"),
                ],
            },
        ],
    },
    "responses": {
        "stream": True,
        "instructions": "INSTRUCTIONS",
        "tools": [
            {
                "type": "namespace",
                "name": "mcp__skills",
                "description": "REMINDER",
                "tools": [{"type": "function", **LOAD_TOOL}],
            }
        ],
        "input": [
            {"type": "message", "role": "user", "content": [text("QUESTION", "input_text")]},
            {"type": "message", "role": "assistant", "content": [text("MINE", "output_text")]},
            {"type": "function_call", "call_id": "1", "name": "skills_load", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "RESULT"},
        ],
    },
    "chat": {
        "stream": True,
        "tools": [{"type": "function", "function": LOAD_TOOL}],
        "messages": [
            {"role": "system", "content": "INSTRUCTIONS"},
            {"role": "user", "content": [text("QUESTION"), text("REMINDER")]},
            {"role": "assistant", "content": "MINE", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "tool_call_id": "1", "content": "RESULT"},
        ],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "INSTRUCTIONS"}]},
        "tools": [{"functionDeclarations": [LOAD_TOOL]}],
        "contents": [
            {"role": "user", "parts": [{"text": "QUESTION"}, {"text": "REMINDER"}]},
            {"role": "model", "parts": [{"text": "MINE"}, {"functionCall": {"name": "x", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "x", "response": {"output": "RESULT"}}}]},
        ],
    },
}


@each_row("api", BODIES)
def test_a_request_is_read(api: Api) -> None:
    seen = read_request(api, BODIES[api])
    assert all(word in seen.text for word in ("INSTRUCTIONS", "QUESTION", "REMINDER"))
    # What the model itself said shows nothing that a host handed on.
    assert "MINE" not in seen.text and "RESULT" not in seen.text
    assert list(seen.results) == ["RESULT"]
    group = "mcp__skills" if api == "responses" else None
    assert list(seen.tools) == [Tool("mcp__skills__skills_load", "LOADS", group)]


def test_a_deferred_tool_is_there_when_a_search_brought_it() -> None:
    tool = {**LOAD_TOOL, "defer_loading": True}
    reference = {"type": "tool_reference", "tool_name": "mcp__skills__skills_load"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [reference]}]}
    assert not read_request("anthropic", {"tools": [tool], "messages": []}).tools
    seen = read_request("anthropic", {"tools": [tool], "messages": [result]})
    assert [each.name for each in seen.tools] == ["mcp__skills__skills_load"]
    assert list(seen.results) == ["mcp__skills__skills_load"]


OURS = [Tool(f"mcp__skills__{name}", name) for name in NEEDED]
LOAD = Step("load", "skills_load", {"names": ["a"]})
READ = Step("read", "skills_read", {"path": "f"})


def script(*steps: Step) -> Script:
    return Script(deque(steps), lambda: True)


def test_steps_come_in_order_and_their_answers_are_kept() -> None:
    talk = script(LOAD, READ)
    assert talk.decide(Seen("", OURS, [])) == Turn(name="mcp__skills__skills_load", arguments={"names": ["a"]})
    read = talk.decide(Seen("", OURS, ['{"session": "s-1_x"}']))
    # As a model does, it gives the session that it was told.
    assert read == Turn(name="mcp__skills__skills_read", arguments={"path": "f", "session": "s-1_x"})
    assert talk.decide(Seen("", OURS, ['{"session": "s-1_x"}', "bytes"])).name == ""
    assert talk.answers == {"load": '{"session": "s-1_x"}', "read": "bytes"}


@each_row("search", ["ToolSearch", "tool_search"])
def test_deferred_tools_are_searched_for_freely_first(search: str) -> None:
    talk = script(LOAD)
    host = [Tool(search, "")]
    late = talk.decide(Seen("", host, []))
    assert (late.name, late.arguments["query"]) == (search, FREE)
    assert late.kind == ("search" if search == "tool_search" else "function")
    # Nothing was there yet: the same free search again. Then a part: the exact one.
    assert talk.decide(Seen("", host, [""])).arguments["query"] == FREE
    exact = talk.decide(Seen("line", [*host, OURS[1]], ["", "one"]))
    assert all(name in exact.arguments["query"] for name in NEEDED) and exact.arguments["query"] != FREE
    call = talk.decide(Seen("whole", [*host, *OURS], ["", "one", "three"]))
    assert call.name == "mcp__skills__skills_load"
    assert talk.found == 1
    assert talk.deferred is not None and talk.deferred.text == "line"
    assert talk.equipped is not None and talk.equipped.text == "whole"


def test_tools_behind_a_bridge_are_called_through_it() -> None:
    talk = script(LOAD)
    messages: list[dict[str, Any]] = []

    def turn() -> Turn:
        functions = [{"type": "function", "function": {"name": name}} for name in ("tool_search", "tool_call")]
        return talk.decide(read_request("chat", {"tools": functions, "messages": messages}))

    search = turn()
    assert (search.name, search.kind) == ("tool_search", "function") and "max_results" in search.arguments
    schemas = [json.dumps({"name": tool.name, "description": "LOADS"}) for tool in OURS]
    shown = "\n".join(f"<function>{schema}</function>" for schema in schemas)
    messages.append({"role": "tool", "content": f"<functions>\n{shown}\n</functions>"})
    call = turn()
    assert call.name == "tool_call"
    assert call.arguments == {"name": "mcp__skills__skills_load", "arguments": LOAD.arguments}
    assert talk.found == len(OURS)


def test_tools_that_never_come_end_the_conversation() -> None:
    for host, found in (("bash", None), ("ToolSearch", 0)):
        talk = script(LOAD)
        turns = [talk.decide(Seen("", [Tool(host, "")], [""] * number)).name for number in range(10)]
        assert turns[0] == ("ToolSearch" if host == "ToolSearch" else "") and turns[-1] == ""
        assert talk.equipped is None and talk.found == found


def test_the_server_records_and_answers() -> None:
    with serving(lambda seen: CALL if seen.tools else Turn("never")) as model:
        peer = HTTPConnection(urlsplit(model.url).netloc, timeout=DEADLINE)

        def post(path: str, body: object) -> tuple[int, bytes]:
            peer.request("POST", path, json.dumps(body))
            answer = peer.getresponse()
            return answer.status, answer.read()

        assert b"skills_load" in post(PATHS["anthropic"], BODIES["anthropic"])[1]
        # Titles and the like are asked for without tools and take no turn of the conversation.
        assert b"skills_load" not in post(PATHS["chat"], {"messages": []})[1]
        assert post("/v1/messages/count_tokens", {"tools": [1]})[0] == 200
        assert post(PATHS["responses"], {"tools": [7]})[0] == 400
        peer.close()
    assert [each.path for each in model.turns()] == [PATHS["anthropic"]]
    assert len(model.faults) == 1 and "/v1/responses" in model.faults[0]
