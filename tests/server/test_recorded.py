"""Recorded requests of independent clients: each one is answered with a valid result of MCP."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

import mcp_types as types
import pytest

from catalog.forest import load_registry
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects.jsonrpc import Message, decode_message
from mcp_skills_server.server.requests import Settings
from scripted import replies_to
from tables import each_row
from wire import FIXTURES, ROOT

FILE = ROOT / "tests" / "server" / "recorded.jsonl"
ROWS: Final[list[dict[str, Any]]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
MODELS: Final[dict[str, Any]] = {
    "initialize": types.InitializeResult, "server/discover": types.DiscoverResult,
    "tools/list": types.ListToolsResult, "tools/call": types.CallToolResult,
    "prompts/list": types.ListPromptsResult, "prompts/get": types.GetPromptResult,
    "resources/list": types.ListResourcesResult, "resources/read": types.ReadResourceResult,
    "resources/templates/list": types.ListResourceTemplatesResult, "completion/complete": types.CompleteResult,
}  # fmt: skip
CODES: Final = {-32700, -32600, -32601, -32602, -32002, -32022}


def key(id_: Any) -> tuple[str, Any]:
    """Return an id with its type, since 1 == 1.0 == True."""
    return type(id_).__name__, id_


def answer_key(line: bytes) -> tuple[str, Any] | None:
    """Return the key of the answer to this line, or None if it gets none."""
    found = decode_message(line)
    if not line.strip() or (isinstance(found, Message) and found.kind != "request"):
        return None
    return key(found.id)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry(FIXTURES)


@pytest.mark.requirement("MCP-20")
@each_row("row", ROWS)
def test_answers_are_valid_in_the_models_of_the_sdk(row: dict[str, Any], registry: Registry) -> None:
    lines = [line.encode("utf-8", "surrogateescape") for line in row["lines"]]
    answers = [each for each in replies_to(lines, registry, Settings(), patient=True) if "method" not in each]
    expected: Counter[tuple[str, Any]] = Counter()
    methods: dict[Any, str] = {}  # by id; "" for a repeated id
    for line in lines:
        id_ = answer_key(line)
        if id_ is None:
            continue
        expected[id_] += 1
        if expected[id_] > 1:
            methods[id_] = ""
        elif id_[1] is not None:
            methods[id_] = json.loads(line).get("method", "")
    assert Counter(key(each["id"]) for each in answers) == expected
    for each in answers:
        if "error" in each:
            assert each["error"]["code"] in CODES, each
        elif (model := MODELS.get(methods.get(key(each["id"]), ""))) is not None:
            model.model_validate(each["result"])
