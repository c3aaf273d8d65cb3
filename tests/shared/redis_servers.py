"""A real `redis-server` for tests, and a TCP listener that stands in for a broken one."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ports import free_port
from wire import DEADLINE


@dataclass
class RealRedis:
    port: int
    folder: Path
    arguments: tuple[str, ...]
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        bound = ("--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "", "--appendonly", "no")
        port = () if "--tls-port" in self.arguments else ("--port", str(self.port))
        command = ["redis-server", *port, *bound, *self.arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        output = line = ""
        while "Ready to accept connections" not in line:
            line = self.process.stdout.readline()
            output += line
            assert line, output
        self.reader = threading.Thread(target=self.process.stdout.read, daemon=True)
        self.reader.start()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.reader is not None:
                self.reader.join(DEADLINE)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = self.reader = None

    def say(self, *words: str | bytes) -> str:
        """Run a command in `redis-cli`, and return its output."""
        options = ("-p", str(self.port)) if "--tls-port" not in self.arguments else ()
        done = subprocess.run(["redis-cli", *options, *words], capture_output=True, timeout=DEADLINE, check=True)
        return done.stdout.decode("utf-8", "replace").strip()

    def all_keys(self) -> list[str]:
        return sorted(self.say("--raw", "keys", "*").split())


@contextmanager
def redis_server(folder: Path, *arguments: str, port: int | None = None) -> Iterator[RealRedis]:
    folder.mkdir(parents=True, exist_ok=True)
    server = RealRedis(port or free_port(), folder, arguments)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yield the port of a listener that calls `answer` for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                answer(connection)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
