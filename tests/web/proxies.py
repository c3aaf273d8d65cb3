"""Processes of haproxy and nginx with the configuration files of `deploy/`."""

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
from web.http_wire import Server, wait_until
from wire import DEADLINE, ROOT

DEPLOY = ROOT / "deploy"
Edits: TypeAlias = Sequence[tuple[str, str]]
SPREAD: Edits = [("balance source", "balance leastconn"), ("hash-type consistent", "")]
"""Edits of haproxy's file: both replicas get connections, although all clients have one address."""
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
    def __init__(self, command: list[str], port: int, environment: Mapping[str, str]) -> None:
        self.port = port
        super().__init__(command, environment)

    def _wait_for_listener(self) -> None:
        wait_until(self._is_listening)

    def _is_listening(self) -> bool:
        assert self.process.poll() is None, self.stderr
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End the process and its workers, which would outlive a killed master."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE)
        super().kill()


class HaProxy(Proxy):
    """haproxy with `deploy/haproxy.cfg`, and a socket for the states of its servers."""

    def __init__(self, folder: Path, *replicas: int, edits: Edits = (), probes: Sequence[int] = ()) -> None:
        port = free_port()
        self._socket = folder / "haproxy.sock"
        more = folder / "more.cfg"
        more.write_text(f"global\n    stats socket {self._socket}\n")
        config = edited(folder, "haproxy.cfg", edits)
        variables = proxy_variables(port, *replicas)
        variables |= {f"PROBES_{number}": str(probe) for number, probe in enumerate(probes, start=1)}
        super().__init__(["haproxy", "-db", "-f", str(config), "-f", str(more)], port, variables)

    def state(self, name: str) -> str:
        """Return the state of a server, such as UP or DOWN; "" before haproxy has started."""
        with socket.socket(socket.AF_UNIX) as connection:
            if connection.connect_ex(str(self._socket)):
                return ""
            connection.sendall(b"show stat\n")
            stats = b""
            while piece := connection.recv(1 << 16):
                stats += piece
        rows = csv.DictReader(io.StringIO(stats.decode().removeprefix("# ")))
        return next(row["status"] for row in rows if row["svname"] == name)

    def wait_for_state(self, name: str, state: str) -> None:
        wait_until(lambda: self.state(name) == state, f"{name} is {self.state(name)}")


def edited(folder: Path, name: str, edits: Edits) -> Path:
    """Return a file of `deploy/`, or a copy of it with edits: pairs of old and new text."""
    if not edits:
        return DEPLOY / name
    text = (DEPLOY / name).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


def proxy_variables(port: int, *replicas: int) -> dict[str, str]:
    """Return the variables of both configuration files. A single replica is named twice, and probed at its port."""
    variables = {"LISTEN": f"127.0.0.1:{port}", "LOCATION": "/"}
    for number, replica in enumerate((*replicas, *replicas)[:2], start=1):
        variables |= {f"REPLICA_{number}": f"127.0.0.1:{replica}", f"PROBES_{number}": str(replica)}
    return variables


class Nginx(Proxy):
    def __init__(self, folder: Path, *replicas: int, edits: Edits = ()) -> None:
        port = free_port()
        user = "" if os.geteuid() else "user root;"  # workers write into a private folder
        site = edited(folder, "nginx.conf.template", edits).read_text()
        (folder / "skills.conf").write_text(Template(site).safe_substitute(proxy_variables(port, *replicas)))
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, user=user))
        super().__init__(["nginx", "-c", str(folder / "nginx.conf")], port, {})


@contextmanager
def running(proxy: Proxy) -> Iterator[Proxy]:
    try:
        yield proxy
    finally:
        proxy.kill()
