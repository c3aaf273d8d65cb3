"""Sign-in to the page at the certified issuer `oidc-provider`, through the forms of the issuer.

Skipped unless `make interop` has installed the package.
"""

from __future__ import annotations

import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode, urljoin

import pytest
from tools.interop.setup import MODULES, NODE

from ports import free_port
from tables import each_row
from web.http_wire import Server
from web.ui.serving import page_serving, visible_text
from wire import DEADLINE, write_skill

MODULE = MODULES / "oidc-provider" / "lib" / "index.js"
SCRIPT = Path(__file__).with_name("oidc_provider.mjs")
_FORM = re.compile(r'<form[^>]* action="([^"]+)"')
_HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="(\w+)"')

pytestmark = pytest.mark.skipif(not (MODULE.exists() and NODE.exists()), reason="make interop installs oidc-provider")


@contextmanager
def issuer(port: int) -> Iterator[str]:
    page_url = f"http://127.0.0.1:{port}"
    command = [str(NODE), str(SCRIPT), str(MODULE), f"{page_url}/mcp", f"{page_url}/ui/oauth/callback"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def page(folder: Path, more: str = "") -> Iterator[Server]:
    write_skill(folder / "skills" / "billing")
    port = free_port()
    config = folder / "config.toml"
    with issuer(port) as url:
        config.write_text(
            f"[oauth]\nissuer = '{url}'\naudience = 'http://127.0.0.1:{port}/mcp'\nui-client-id = 'page'\n"
            f"groups-claim = 'realm_access.roles'\n{more}\n"
            "[[grant]]\nwho = ['group:finance']\nskills = ['**']\nmay = ['admin']\n",
            encoding="utf-8",
        )
        with page_serving(folder / "skills", "--config", config, "--port", str(port)) as server:
            yield server


class Browser:
    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))

    def get(self, url: str, form: dict[str, str] | None = None) -> tuple[str, str]:
        data = None if form is None else urlencode(form).encode()
        try:
            with self._opener.open(url, data, timeout=DEADLINE) as answer:
                return answer.url, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.url or url, error.read().decode()

    def submit(self, url: str, text: str, **fields: str) -> tuple[str, str]:
        found = _FORM.search(text)
        assert found, text
        return self.get(urljoin(url, found[1]), {**dict(_HIDDEN.findall(text)), **fields})


@each_row("more", [
    "", "scopes = ['skills:read']", "scopes = ['skills:read']\nrequest-scopes = ['openid', 'skills:read']",
])  # fmt: skip
def test_person_signs_in_at_certified_provider(tmp_path: Path, more: str) -> None:
    browser = Browser()
    with page(tmp_path, more) as server:
        url, text = browser.get(f"http://127.0.0.1:{server.port}/ui/oauth/begin")
        url, text = browser.submit(url, text, login="ann", password="x")
        url, text = browser.submit(url, text)  # consent
        assert f"127.0.0.1:{server.port}/ui/oauth/callback" in url, text
        _, text = browser.get(f"http://127.0.0.1:{server.port}/ui/")
        assert "billing" in visible_text(text) and "ann" in visible_text(text)
        assert "signing in at the issuer failed" not in server.stderr


def test_refusal_of_issuer_is_shown_and_logged(tmp_path: Path) -> None:
    with page(tmp_path) as server:
        browser = Browser()
        url, text = browser.get(f"http://127.0.0.1:{server.port}/ui/oauth/begin")
        url, text = browser.get(f"{url}/abort")
        reason = "refused the sign-in (access_denied: End-User aborted interaction)"
        assert reason in visible_text(text)
        server.wait_for_log(f"signing in at the issuer failed: .*{re.escape(reason)}")
