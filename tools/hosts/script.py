"""What the scripted model does in a conversation, and what it was shown on the way."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tools.hosts.apis import Seen, Tool, Turn

NEEDED: Final = ("skills_search", "skills_load", "skills_read")
FREE: Final = "skills search load read"
"""What a model that knows nothing of the tools would look for."""
SEARCHES: Final = 6
SEARCH_AGAIN: Final = ""
"""The tool of a step that searches the deferred tools once more, where there are such."""
_SESSION: Final = re.compile(r'(?:"session":\s*"|Session: )([\w-]+)')
"""What skills_load returned, as the structure or as the text."""


@dataclass(frozen=True)
class Step:
    """One call of a tool of ours, and what is to happen before it."""

    label: str
    tool: str
    arguments: Mapping[str, Any]
    before: Callable[[], None] | None = None


@dataclass
class Script:
    """A conversation: find the tools, take the steps, end.

    Attributes:
        ready: waits until the server has listed its tools; whether it has.
        first: what the first request showed.
        equipped: what the first request showed that had our tools; None if none had.
        deferred: what the last request before that showed, when our tools had to be searched for.
        found: how many of our tools a free search among deferred ones brought; None if there was no such search.
        answers: what came back to the model, by the steps' labels.
        after: what the request with that answer showed.
    """

    steps: deque[Step]
    ready: Callable[[], bool]
    first: Seen | None = None
    equipped: Seen | None = None
    deferred: Seen | None = None
    found: int | None = None
    answers: dict[str, str] = field(default_factory=dict[str, str])
    after: dict[str, Seen] = field(default_factory=dict[str, Seen])
    _turns: dict[int, Turn] = field(default_factory=dict[int, Turn])
    _pending: str = ""
    _session: str = ""
    _searched: int = 0
    _free: bool = False

    def decide(self, seen: Seen) -> Turn:
        """The next turn. A request that is sent again gets the same one."""
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
        # How a search ended is seen in the tools that it brought.
        if self._free and self.equipped is None:
            self.found = len(tools)
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
        return Turn(name=tool.name, arguments={**step.arguments, **handle}, group=tool.group)

    def _search(self, seen: Seen) -> Turn:
        self._searched += 1
        # A free search first. An exact one when that brought a part, so that the rest can be measured all the same.
        exact = bool(self.found)
        turn = _search_turn(seen, exact=exact) if self._searched <= SEARCHES and self.ready() else None
        self._free = turn is not None and not exact
        self.deferred = seen if turn is not None else None
        return turn or Turn("There are no skills here.")


def _search_turn(seen: Seen, *, exact: bool) -> Turn | None:
    """A search among deferred tools, in the form of the host; None where it has none."""
    names = {tool.name for tool in seen.tools}
    if "tool_search" in names:
        query = " ".join(NEEDED) if exact else FREE
        return Turn(name="tool_search", arguments={"query": query, "limit": 8}, kind="search")
    if "ToolSearch" in names:
        query = "select:" + ",".join(f"mcp__skills__{name}" for name in NEEDED) if exact else FREE
        return Turn(name="ToolSearch", arguments={"query": query, "max_results": 10})
    return None


def ours(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Our tools by our own names, whatever the host puts before them."""
    out: dict[str, Tool] = {}
    for tool in tools:
        match = re.search(r"skills_(?:list|search|load|unload|read|run_script)\Z", tool.name)
        if match:
            out[match[0]] = tool
    return out
