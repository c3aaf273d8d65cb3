"""The npm package `skills`, which installs what a site publishes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tools.interop.checks import Check, all_there
from tools.interop.installation import VERCEL
from tools.interop.places import MODULES, NODE, SKILLS
from tools.interop.processes import LONGEST_RUN_S, RefereeError, call
from tools.interop.server import bundles

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def installed_by_vercel(url: str | None) -> list[Check]:
    """Have the npm package `skills` install every skill that a site publishes, and compare every byte.

    The site is the live server, or without a URL a static tree behind Python's own web server. The client drops a byte
    order mark at the beginning of a SKILL.md, so the rest is compared there.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        where = Path(scratch)
        site = urlsplit(url)._replace(path="").geturl() if url else stack.enter_context(_static_site(where / "site"))
        (where / "work").mkdir()
        program = MODULES / VERCEL / "bin" / "cli.mjs"
        options = ["--skill", "*", "--copy", "-a", "claude-code", "-y"]
        done = subprocess.run(
            [str(NODE), str(program), "add", site, *options],
            cwd=where / "work",
            env={**os.environ, "HOME": str(where / "home"), "DISABLE_TELEMETRY": "1"},
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise RefereeError(f"skills add ended with {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
        checks: list[Check] = []
        for source in sorted(path.parent for path in SKILLS.rglob("SKILL.md")):
            there = where / "work" / ".claude" / "skills" / source.name
            checks.append(Check("discovery", f"skill {source.name}", "SUCCESS" if there.is_dir() else "FAILURE"))
            for path in sorted(each for each in source.rglob("*") if each.is_file()):
                copy, raw = there / path.relative_to(source), path.read_bytes()
                same = copy.is_file() and copy.read_bytes() in {raw, raw.removeprefix(BYTE_ORDER_MARK)}
                name = f"file {source.name}/{path.relative_to(source)}"
                checks.append(Check("discovery", name, "SUCCESS" if same else "FAILURE", "" if same else "other bytes"))
    return [*checks, all_there("discovery", checks, {kind: bundles()[kind] for kind in ("skill", "file")})]


@contextmanager
def _static_site(output: Path) -> Iterator[str]:
    """What `publish` writes, behind a web server that knows nothing of it; its URL."""
    call([sys.executable, "-m", "mcp_skills_server", "publish", str(SKILLS), "--output", str(output)])
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(output))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(5)


class _Quiet(SimpleHTTPRequestHandler):
    """Files, without a word for each."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass
