"""Real proxies before real servers: haproxy and nginx, with the files that `deploy/` ships."""

from __future__ import annotations

import csv
import io
import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import TypeAlias

from ports import free_port
from web.http_wire import Server, until
from wire import DEADLINE, ROOT

DEPLOY = ROOT / "deploy"
Edits: TypeAlias = Sequence[tuple[str, str]]
SPREAD: Edits = [("balance source", "balance leastconn"), ("hash-type consistent", "")]
"""For haproxy: all clients of a test have one address, and both replicas are to have some of them."""
NGINX = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log stderr info;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/skills.conf;
}}
"""


class Proxy(Server):
    """A proxy process. Clients take it for a server."""

    def __init__(self, command: list[str], port: int, environment: Mapping[str, str]) -> None:
        self.port = port
        super().__init__(command, environment)

    def _wait_until_it_listens(self) -> None:
        until(self._is_there)

    def _is_there(self) -> bool:
        assert self.process.poll() is None, self.stderr
        with socket.socket() as bare:
            return bare.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End it with its workers, which would outlive a master that is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE)
        super().kill()


class HaProxy(Proxy):
    """haproxy as `deploy/haproxy.cfg` has it, and a socket that says what it thinks of its servers."""

    def __init__(self, folder: Path, *replicas: int, edits: Edits = ()) -> None:
        port = free_port()
        self._socket = folder / "haproxy.sock"
        more = folder / "more.cfg"
        more.write_text(f"global\n    stats socket {self._socket}\n")
        config = edited(folder, "haproxy.cfg", edits)
        super().__init__(["haproxy", "-db", "-f", str(config), "-f", str(more)], port, where(port, *replicas))

    def state(self, name: str) -> str:
        """What it thinks of a server: UP, DOWN, or on the way; "" before it has begun."""
        with socket.socket(socket.AF_UNIX) as asking:
            if asking.connect_ex(str(self._socket)):
                return ""
            asking.sendall(b"show stat\n")
            told = b""
            while piece := asking.recv(1 << 16):
                told += piece
        rows = csv.DictReader(io.StringIO(told.decode().removeprefix("# ")))
        return next(row["status"] for row in rows if row["svname"] == name)

    def sees(self, name: str, state: str) -> None:
        """Wait until it thinks so."""
        until(lambda: self.state(name) == state, f"{name} is {self.state(name)}")


def edited(folder: Path, name: str, edits: Edits) -> Path:
    """The file of `deploy/`, or a copy with these changes: pairs of what stands there and what shall."""
    if not edits:
        return DEPLOY / name
    text = (DEPLOY / name).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


def where(port: int, *replicas: int) -> dict[str, str]:
    """The environment of both files; one replica stands for two."""
    first, second = (f"127.0.0.1:{each}" for each in (*replicas, *replicas)[:2])
    return {"LISTEN": f"127.0.0.1:{port}", "LOCATION": "/", "REPLICA_1": first, "REPLICA_2": second}


class Nginx(Proxy):
    """nginx as `deploy/nginx.conf.template` has it."""

    def __init__(self, folder: Path, *replicas: int, edits: Edits = ()) -> None:
        port = free_port()
        user = "" if os.geteuid() else "user root;"  # its workers write below a folder that is private
        site = edited(folder, "nginx.conf.template", edits).read_text()
        (folder / "skills.conf").write_text(Template(site).safe_substitute(where(port, *replicas)))
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, user=user))
        super().__init__(["nginx", "-c", str(folder / "nginx.conf")], port, {})


@contextmanager
def running(proxy: Proxy) -> Iterator[Proxy]:
    """The proxy until it is left."""
    try:
        yield proxy
    finally:
        proxy.kill()
