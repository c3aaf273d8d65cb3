"""What supervisor and worker say to each other: a JSON object a line, over a pair of sockets.

The first line to a worker is its `Post`. Then come, with `say`: "load", once the folders are watched; "accept"; "look"
at `paths`, or at everything where they are null, said `at` a moment; "again", to repeat to clients what they were
notified of since a moment; "note" what a source says of its folder; "states" of the sources; "changes", what scans
found, for people to read; "end", where all workers are to end. A worker says "started", "accepting", "loaded", "look"
when somebody asks for a look at the sources, and "late" when it answered though others had notified of a change that
it did not have, since a moment. Moments are of the clock that all processes of a machine have in common.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.workers import VARIABLE
from mcp_skills_server.web.workers.routing import Routes, mark

Say: TypeAlias = Literal[
    "load", "accept", "look", "again", "note", "states", "changes", "end", "started", "accepting", "loaded", "late"
]


def loads_path(paths: str) -> str:
    """The file of what each worker has to do."""
    return paths.format("loads")


Kind: TypeAlias = Literal["runs", "clients"]
KINDS: Final[tuple[Kind, Kind]] = ("runs", "clients")


def kept_path(paths: str, kind: Kind, number: int) -> str:
    """The file of what a worker keeps for the others to read. That of its clients is gone with it."""
    return paths.format(f"{kind}_{number}")


def metrics_path(paths: str) -> str:
    """The folder of what each process counts."""
    return paths.format("metrics")


def line(say: Say, **more: Any) -> bytes:
    """A message. Paths may hold bytes that are no UTF-8."""
    return json.dumps({"say": say, **more}).encode("ascii") + b"\n"


@dataclass(frozen=True, slots=True)
class Post:
    """What a worker is started with.

    Attributes:
        number: which of the workers it is, from 0.
        count: how many there are.
        listener: the descriptor of the socket that all of them accept from.
        family: of that socket.
        paths: where worker N takes connections: this, with N put in for {}.
        folders: what is served: path, and the origin where there is one.
        configuration: the text of the configuration file as it was at the start; None where there is none.
    """

    number: int
    count: int
    listener: int
    family: int
    paths: str
    folders: Sequence[tuple[str, str | None]]
    configuration: str | None = None

    @property
    def mark(self) -> str:
        """What the ids of this worker end with."""
        return mark(self.number)

    @property
    def routes(self) -> Routes:
        """What gives requests to the other workers."""
        return Routes(self.number, self.count, self.paths)

    @property
    def path(self) -> str:
        """Where it takes connections."""
        return self.paths.format(self.number)

    @property
    def loads(self) -> str:
        """The file of what each worker has to do."""
        return loads_path(self.paths)

    @property
    def metrics(self) -> str:
        """The folder of what each process counts."""
        return metrics_path(self.paths)

    @property
    def of_all(self) -> list[str]:
        """What the last of all leaves behind, beside the folder that it is in."""
        kept = [kept_path(self.paths, kind, number) for kind in KINDS for number in range(self.count)]
        return [self.loads, self.metrics, *kept]

    @property
    def roots(self) -> list[str | MirroredRoot]:
        """What to give a registry."""
        return [path if origin is None else MirroredRoot(path, origin) for path, origin in self.folders]

    def share(self, whole: int) -> int:
        """Its part of a limit that holds for all workers together."""
        return whole // self.count + (self.number < whole % self.count)

    def open_listener(self) -> socket.socket:
        """The socket that all workers accept from."""
        # With the number of TCP, as `open_listener` has it.
        return socket.socket(self.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=self.listener)

    def line(self) -> bytes:
        """It as the first line of a channel."""
        return json.dumps(asdict(self)).encode("ascii") + b"\n"


class Channel:
    """The worker's end.

    Args:
        descriptor: of the socket.

    Raises:
        UsageError: it is none that a supervisor made.
    """

    def __init__(self, descriptor: str) -> None:
        try:
            self._socket = socket.socket(fileno=int(descriptor))
            self._lines = self._socket.makefile("rb")
            fields: dict[str, Any] = json.loads(self._lines.readline())
            self.post: Final = Post(**fields)
        except (OSError, ValueError, TypeError):
            raise UsageError(f"{VARIABLE} is set, which 'serve --workers' alone does; unset it") from None

    def receive(self) -> dict[str, Any] | None:
        """The next message; blocks until it comes. None when the supervisor is gone."""
        try:
            raw = self._lines.readline()
        except OSError:
            return None
        return cast("dict[str, Any]", json.loads(raw)) if raw.endswith(b"\n") else None

    def send(self, say: Say, **more: Any) -> None:
        """Send a message. From any thread; these are few and short."""
        with suppress(OSError):  # the supervisor is gone, which `receive` says too
            self._socket.sendall(line(say, **more))
