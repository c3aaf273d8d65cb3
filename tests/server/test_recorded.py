"""What independent clients said: each request is answered, by results of MCP."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final

import mcp_types as types
import pytest

from catalog.forest import loaded
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects.jsonrpc import Message, decode_message
from mcp_skills_server.server.requests import Settings
from scripted import talk
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
    """An id and its type: "1" and 1 are two."""
    return type(id_).__name__, id_


def owed(line: bytes) -> tuple[str, Any] | None:
    """The key of the answer that a line is owed, None for none."""
    found = decode_message(line)
    if not line.strip() or (isinstance(found, Message) and found.kind != "request"):
        return None
    return key(found.id)


@pytest.fixture(scope="module")
def registry() -> Registry:
    """The skills that the clients were served."""
    return loaded(FIXTURES)


@each_row("row", ROWS)
def test_answers_fit_the_models_of_the_sdk(row: dict[str, Any], registry: Registry) -> None:
    lines = [line.encode("utf-8", "surrogateescape") for line in row["lines"]]
    answers = [each for each in talk(lines, registry, Settings(), patient=True) if "method" not in each]
    wanted = Counter(id_ for line in lines if (id_ := owed(line)) is not None)
    assert Counter(key(each["id"]) for each in answers) == wanted
    methods: dict[Any, str] = {}  # of requests, by the ids that none but they have
    for line in lines:
        if (id_ := owed(line)) is not None and id_[1] is not None:
            methods[id_] = "" if id_ in methods else json.loads(line).get("method", "")
    for each in answers:
        if "error" in each:
            assert each["error"]["code"] in CODES, each
        elif (model := MODELS.get(methods.get(key(each["id"]), ""))) is not None:
            model.model_validate(each["result"])


def test_the_recording_is_of_many_clients_and_holds_nothing_of_the_machine_it_was_made_on() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text) < 1 << 20
    assert not re.search(r"127\.0\.0\.1|localhost:|/tmp/|/home/|/root/|/work/|file://", text)
    assert len({row["by"].split(",")[0] for row in ROWS}) >= 7
    assert sum(len(row["lines"]) for row in ROWS) >= 300
