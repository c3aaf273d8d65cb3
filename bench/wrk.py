"""Debian's `wrk` as a second client: its load generator costs less processor time than the one of `client`."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final

from bench.client import CONNECTIONS, BenchError, HttpClient

MISSING: Final = "not installed (Debian: wrk); its rows are left out"


def is_installed() -> bool:
    return shutil.which("wrk") is not None


def rate(client: HttpClient, prepared: Sequence[bytes], seconds: float) -> float:
    """Send prepared requests in turn on 16 connections; return requests a second.

    Raises:
        BenchError: wrk failed, or a response was no 2xx.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(lua(prepared))
        script.flush()
        options = ["-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "-s", script.name]
        with client.on_its_own_core():
            done = subprocess.run(
                ["wrk", *options, f"http://127.0.0.1:{client.port}/mcp"], capture_output=True, text=True, check=False
            )
    return parse(done.stdout or done.stderr)


def lua(prepared: Sequence[bytes]) -> str:
    """Return the script of wrk that sends these bytes in turn."""
    strings = ("".join(f"\\{byte:03}" for byte in request) for request in prepared)
    requests = ",\n".join(f'"{string}"' for string in strings)
    return (
        f"local requests = {{\n{requests}\n}}\nlocal last = 0\n"
        "request = function()\n  last = last % #requests + 1\n  return requests[last]\nend\n"
    )


def parse(output: str) -> float:
    """Return the requests a second from the output of wrk.

    Raises:
        BenchError: it has no rate, or names errors.
    """
    found = re.search(r"^Requests/sec: +([\d.]+)$", output, re.MULTILINE)
    errors = re.search(r"^ *(?:Non-2xx|Socket errors).*", output, re.MULTILINE)
    if found is None or errors is not None:
        raise BenchError(f"wrk: {errors[0].strip() if errors else output[-500:].strip() or 'no output'}")
    return float(found[1])
