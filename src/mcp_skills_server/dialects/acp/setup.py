"""The one change to a client's message: a setup of a session gets one MCP server more. All else stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from mcp_skills_server.dialects.acp.fields import SETUPS, Params, as_dict, list_in

_SERVER_NAME: Final = "skills"
"""Of the server that is added, unless another one has it."""


def server(name: str, words: Sequence[str], version: int) -> dict[str, Any]:
    """An MCP server that the agent is to start, as McpServerStdio: the program by absolute path and its arguments."""
    typed = {"type": "stdio"} if version >= 2 else {}
    return {**typed, "name": name, "command": words[0], "args": list(words[1:]), "env": []}


def with_server(text: str, make: Callable[[str], Mapping[str, Any]]) -> str:
    """A client's message as text, with one more MCP server in every setup of a session.

    Nothing else changes, not a blank. `make` makes the server of a name that no other server there has. A message that
    cannot be changed so is returned as it is.

    Raises:
        ValueError: it is no JSON.
    """
    wanted: Any = json.loads(text)
    places = _Places(text)
    first = places.skip(0)
    several = isinstance(wanted, list)
    messages = cast("list[object]", wanted) if several else [wanted]
    starts = [start for start, _ in places.items(first)] if several else [first]
    cuts: list[tuple[int, int, str]] = []
    for start, each in zip(starts, messages, strict=True):
        params = _setup_params(each)
        if params is None:
            continue
        servers = list_in(params, "mcpServers")
        taken = {name for other in servers if isinstance(name := as_dict(other).get("name"), str)}
        added = make(next(name for name in _names() if name not in taken))
        params["mcpServers"] = [*servers, added]
        cuts.append(places.adding(places.member(start, "params")[0], json.dumps(added)))
    parts: list[str] = []
    place = 0
    for start, end, new in cuts:
        parts += [text[place:start], new]
        place = end
    changed = "".join((*parts, text[place:]))
    return changed if not cuts or json.loads(changed) == wanted else text


def _setup_params(message: object) -> Params | None:
    """The params of a setup whose list of MCP servers can be added to."""
    each = as_dict(message)
    params = each.get("params")
    if "id" not in each or each.get("method") not in SETUPS or not isinstance(params, dict):
        return None
    params = cast("Params", params)
    return params if isinstance(params.get("mcpServers"), list | None) else None


def _names() -> Iterator[str]:
    yield _SERVER_NAME
    number = 2
    while True:
        yield f"{_SERVER_NAME}-{number}"
        number += 1


class _Places:
    """Where the values of a JSON text stand. The text has been parsed before, so it is well formed."""

    _BLANKS: Final = re.compile(r"[ \t\r\n]*")

    def __init__(self, text: str) -> None:
        self.text = text
        self._decoder = json.JSONDecoder()

    def skip(self, place: int) -> int:
        """The next place that is no blank."""
        match = self._BLANKS.match(self.text, place)
        return match.end() if match else place

    def items(self, opening: int) -> Iterator[tuple[int, int]]:
        """Start and end of each value of an array, or of each key of an object with the value's by turns."""
        place = self.skip(opening + 1)
        while self.text[place] not in "]}":
            _, end = self._decoder.raw_decode(self.text, place)
            yield place, end
            place = self.skip(end)
            if self.text[place] in ",:":
                place = self.skip(place + 1)

    def member(self, opening: int, key: str) -> tuple[int, int]:
        """Start and end of an object's member; of several with one key the last counts. (-1, -1) without one."""
        spans = list(self.items(opening))
        found = (-1, -1)
        for (start, end), value in zip(spans[::2], spans[1::2], strict=True):
            if json.loads(self.text[start:end]) == key:
                found = value
        return found

    def adding(self, params: int, new: str) -> tuple[int, int, str]:
        """What to put where, so that the list of servers of these params has one more."""
        start, end = self.member(params, "mcpServers")
        if start >= 0 and self.text[start] != "[":
            return start, end, f"[{new}]"  # null
        inside = list(self.items(params if start < 0 else start))
        place = inside[-1][1] if inside else (params if start < 0 else start) + 1
        return place, place, ("," if inside else "") + (f'"mcpServers":[{new}]' if start < 0 else new)
