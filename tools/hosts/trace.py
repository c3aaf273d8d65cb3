"""What a host and the server said to each other: the server's stdio, copied to files by a small script in between."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Trace:
    """The folder of the copies. Each start of the server has files of its own."""

    folder: Path

    def write_program(self, server: Sequence[str]) -> Path:
        """The program that a host is given: it starts the server and copies both directions."""
        self.folder.mkdir()
        program = self.folder / "skills-server"
        there = shlex.quote(str(self.folder))
        line = f'tee {there}/in.$$ | {shlex.join(server)} "$@" 2>{there}/err.$$ | tee {there}/out.$$'
        program.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        program.chmod(0o755)
        return program

    def asked(self) -> list[dict[str, Any]]:
        """The messages of the host."""
        return list(self._messages("in"))

    def said(self) -> list[dict[str, Any]]:
        """The messages of the server."""
        return list(self._messages("out"))

    def log(self) -> str:
        """What the server wrote for people."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("err.*")))

    def count(self, method: str) -> int:
        """How often the host asked for this."""
        return sum(each.get("method") == method for each in self.asked())

    def notices(self) -> int:
        """How often the server said that its tools changed."""
        return sum(each.get("method") == "notifications/tools/list_changed" for each in self.said())

    def instructions(self) -> list[str]:
        """The server's instructions, each version that it sent."""
        return list(dict.fromkeys(each["instructions"] for each in self._results() if "instructions" in each))

    def tools(self) -> list[dict[str, str]]:
        """The descriptions of the server's tools by name, for each time that they were listed."""
        lists = [each["tools"] for each in self._results() if each.get("tools")]
        return [{tool["name"]: tool["description"] for tool in each} for each in lists]

    def prompts(self) -> int:
        """How many prompts the host was given."""
        return len({prompt["name"] for each in self._results() for prompt in each.get("prompts", ())})

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait for something that the files show; whether it came."""
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def _results(self) -> list[dict[str, Any]]:
        return [each["result"] for each in self.said() if isinstance(each.get("result"), dict)]

    def _messages(self, direction: str) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob(f"{direction}.*"), key=lambda path: path.stat().st_mtime_ns):
            for line in path.read_bytes().splitlines():
                try:
                    message = json.loads(line)
                except ValueError:
                    continue  # a line that is not whole yet
                if isinstance(message, dict):
                    yield message
