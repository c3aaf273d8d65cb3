"""Requests with similar ids: each is answered and cancelled by its own id."""

from __future__ import annotations

import anyio
import pytest

from catalog.forest import load_registry
from conversations import ENVELOPE
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.server.stdio import Connection
from scripted import Script, replies_to, serve_script
from server.test_connection import LISTEN, encoded
from wire import FIXTURES


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry(FIXTURES / "acme")


@pytest.mark.parametrize("pair", [(7, "7"), (10, "1_0")])
def test_end_of_stdin_cancels_requests_with_similar_ids(
    pair: tuple[int, str], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If both ids had the same key, one request would stay uncancelled and delay the exit."""

    async def hang(*_: object) -> bytes:
        await anyio.Event().wait()
        return b""

    monkeypatch.setattr(Connection, "answer", hang)
    lines = encoded(*[{"id": each, "method": "skills/list", "params": {"_meta": ENVELOPE}} for each in pair])

    async def has_ended() -> bool:
        with anyio.move_on_after(6):
            await serve_script(Script(lines, patient=False), registry, Settings())
            return True
        return False

    assert anyio.run(has_ended)


def test_cancel_of_another_id_is_ignored(registry: Registry) -> None:
    """Python's `int("1_0")` is 10, but these ids are different."""
    listen = {"id": 10, "method": "subscriptions/listen", "params": LISTEN}
    cancel = {"method": "notifications/cancelled", "params": {"requestId": "1_0"}}
    lines = encoded(listen, cancel, listen, {"id": 8, "method": "server/discover", "params": {"_meta": ENVELOPE}})
    received = replies_to(lines, registry, Settings(), patient=True)
    methods = [each.get("method") for each in received]
    # The second `listen` is refused, since the first one still runs.
    assert methods.count("notifications/subscriptions/acknowledged") == 1
