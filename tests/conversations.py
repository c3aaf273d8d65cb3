"""Hypothesis strategies for conversations of MCP clients, valid and invalid, in any order."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

from malformed import LONE_SURROGATES, MALFORMED

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"
ENVELOPE: Final[dict[str, Any]] = {VERSION: "2026-07-28", CAPABILITIES: {}, CLIENT: {"name": "x", "version": "1"}}
EXTENSION: Final[dict[str, Any]] = {"extensions": {"io.modelcontextprotocol/skills": {}}}
HANDSHAKE: Final[dict[str, Any]] = {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"},
}  # fmt: skip
SKILL = "skill://a/SKILL.md"
TEMPLATE, ARGUMENT = {"type": "ref/resource", "uri": "skill://{+path}"}, {"name": "path", "value": "a"}

REQUESTS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("initialize", HANDSHAKE),
    ("initialize", {**HANDSHAKE, "protocolVersion": "2024-11-05", "capabilities": EXTENSION}),
    ("initialize", {**HANDSHAKE, "capabilities": {"roots": {"listChanged": True}, "sampling": {}, "tasks": {}}}),
    ("server/discover", {}),
    ("ping", {}),
    ("logging/setLevel", {"level": "info"}),
    ("skills/list", {}),
    ("skills/list", {"cursor": "x"}),
    ("skills/get", {"uri": SKILL}),
    ("skills/get", {"name": "b", "arguments": {"topic": "tea"}}),
    ("skills/get", {"name": "none"}),
    ("resources/directory/read", {"uri": "skill://a"}),
    ("resources/list", {}),
    ("resources/list", {"cursor": "x"}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": SKILL}),
    ("resources/read", {"uri": "skill://a/data.bin"}),
    ("resources/read", {"uri": "skill://a/../b/SKILL.md", "requestState": "x"}),
    ("resources/subscribe", {"uri": SKILL}),
    ("resources/subscribe", {"uri": "skill://none/SKILL.md"}),
    ("resources/unsubscribe", {"uri": SKILL}),
    ("subscriptions/listen", {"notifications": {"skillsListChanged": True, "toolsListChanged": True}}),
    ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [SKILL, "x"], "promptsListChanged": False}}),
    ("subscriptions/listen", {"notifications": {}}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "b"}, "argument": {"name": "topic", "value": ""}}),
    ("completion/complete", {"ref": TEMPLATE, "argument": ARGUMENT, "context": {"arguments": {"x": "y"}}}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "b", "arguments": {"topic": "tea"}}),
    ("prompts/get", {"name": "a"}),
    ("tools/list", {}),
    ("tools/call", {"name": "skills_list", "arguments": {}}),
    ("tools/call", {"name": "skills_search", "arguments": {"query": "tea"}, "task": {"ttl": 5}}),
    ("tools/call", {"name": "skills_read", "arguments": {"skill": "a", "path": "guide.md"}}),
    ("tools/call", {"name": "none"}),
    ("tools/call", {"name": "skills_lst"}),
    ("tasks/list", {}),
    ("sampling/createMessage", {}),
    ("nothing/at/all", {"x": 1}),
    ("", {}),
    *LONE_SURROGATES,
]
"""Every method with valid parameters, and unknown methods."""
STATEFUL: Final[list[tuple[str, dict[str, Any]]]] = [
    ("tools/call", {"name": "skills_load", "arguments": {"names": ["a"]}}),
    ("tools/call", {"name": "skills_load", "arguments": {"names": ["b"], "session": "none"}}),
    ("tools/call", {"name": "skills_unload", "arguments": {"names": ["a"]}}),
]
"""Requests whose result depends on earlier requests."""
NOTIFICATIONS: Final[list[tuple[str, dict[str, Any] | None]]] = [
    ("notifications/initialized", None),
    ("notifications/initialized", {}),
    ("notifications/initialized", {"_meta": 5}),
    ("notifications/progress", {"progressToken": 1, "progress": 0.5}),
    ("notifications/roots/list_changed", None),
    ("notifications/message", {"level": "info", "data": 1}),
    ("notifications/none", {"x": 1}),
    ("skills/list", None),
    ("initialize", HANDSHAKE),
]
JUNK = st.sampled_from([
    None, True, False, 0, 1, 5, 5.0, 1.5, -1, 2**70, "", "x", "true", "Yes", "5", " 7 ", "1_0", "5.0",
    [], {}, [1], ["x"], {"x": 1}, {"x": "y"}, {"x": {}}, [{}], {"listChanged": "yes"}, {"form": {}},
    "2026-07-28", "2025-06-18", "1999-01-01", "debug", "light", {"src": "x", "theme": "light"},
    [{"src": "x", "theme": "dim"}], {"name": "x", "version": "1", "title": 5}, {"ttl": "x"},
])  # fmt: skip
KEYS = st.sampled_from([
    "_meta", "cursor", "name", "uri", "arguments", "inputResponses", "requestState", "task", "ref", "argument", "level",
])  # fmt: skip
META_KEYS = st.sampled_from([VERSION, CAPABILITIES, CLIENT, "io.modelcontextprotocol/logLevel", "progressToken"])
CAPABILITY_KEYS = st.sampled_from(["roots", "sampling", "elicitation", "extensions", "experimental", "tasks", "other"])
IDS = st.one_of(st.integers(-3, 12), st.sampled_from(["", "x", "7", "7.0", 2**53, 10**30, "é"]))


@st.composite
def params(draw: st.DrawFn, given: dict[str, Any] | None, *, enveloped: bool) -> dict[str, Any] | None:
    """Return valid or slightly invalid parameters."""
    out: dict[str, Any] | None = None if given is None else json.loads(json.dumps(given))
    if out is not None and enveloped:
        out["_meta"] = json.loads(json.dumps(ENVELOPE))
    if out is None or draw(st.integers(0, 2)):
        return out
    where: dict[str, Any] = out
    keys = KEYS if not out else st.one_of(KEYS, st.sampled_from(sorted(out)))
    for _ in range(draw(st.integers(0, 3))):  # descend into nested objects
        inner = sorted(key for key, value in where.items() if isinstance(value, dict))
        if not inner:
            break
        key = draw(st.sampled_from(inner))
        where = where[key]
        keys = META_KEYS if key == "_meta" else CAPABILITY_KEYS if "apabilities" in key else KEYS
        keys = st.one_of(keys, st.sampled_from(sorted(where))) if where else keys
    key = draw(keys)
    if draw(st.integers(0, 3)) == 0:
        where.pop(key, None)
    else:
        where[key] = draw(JUNK)
    return out if draw(st.integers(0, 9)) else None


@st.composite
def conversation(draw: st.DrawFn, *, patient: bool) -> list[bytes]:
    """Return the lines of a client. Only a patient one repeats ids, cancels, or sends stateful requests."""
    modern = draw(st.booleans())
    out: list[Any] = []
    if draw(st.integers(0, 5)):  # usually with a handshake
        if modern:
            out.append({"id": "first", "method": "server/discover", "params": {"_meta": ENVELOPE}})
        else:
            out.append({"id": "first", "method": "initialize", "params": HANDSHAKE})
            out.append({"method": "notifications/initialized"})
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.integers(0, 11))
        if kind < 9:
            method, given = draw(st.sampled_from(REQUESTS + STATEFUL * patient))
            enveloped = modern ^ (draw(st.integers(0, 11)) == 0)
            request: dict[str, Any] = {"id": draw(IDS) if patient else number, "method": method}
            sent = draw(params(given, enveloped=enveloped))
            out.append(request if sent is None else {**request, "params": sent})
        elif kind == 9:
            method, given = draw(st.sampled_from(NOTIFICATIONS))
            out.append({"method": method} if given is None else {"method": method, "params": given})
        elif kind == 10 and patient:
            identifier = draw(st.one_of(IDS, JUNK))
            out.append({"method": "notifications/cancelled", "params": {"requestId": identifier}})
        else:
            answer = {"id": 1, "result": {}}
            out.append(draw(st.sampled_from([*(case.raw for case in MALFORMED), b"x" * 70_000, answer])))
    return [each if isinstance(each, bytes) else json.dumps({"jsonrpc": "2.0", **each}).encode() for each in out]
