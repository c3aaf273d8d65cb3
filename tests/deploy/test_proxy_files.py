"""The proxies' files in `deploy/` by the proxies' own words; `tests/web/test_proxies.py` runs them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from string import Template

import pytest

from forkserver import run
from web.proxies import DEPLOY, NGINX, where


@pytest.mark.needs_program("haproxy")
def test_haproxy_has_nothing_to_say_against_its_file() -> None:
    done = run(
        ["haproxy", "-c", "-f", str(DEPLOY / "haproxy.cfg")],
        env={**os.environ, **where(8080, 8001, 8002)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, done


@pytest.mark.needs_program("nginx")
def test_nginx_has_nothing_to_say_against_its_file(tmp_path: Path) -> None:
    site = (DEPLOY / "nginx.conf.template").read_text()
    (tmp_path / "skills.conf").write_text(Template(site).safe_substitute(where(8080, 8001, 8002)))
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, user=""))
    command = ["nginx", "-t", "-e", "stderr", "-c", str(tmp_path / "nginx.conf")]
    done = run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "[warn]" not in done.stderr, done


def test_nginx_gives_up_connections_before_a_server_does_by_itself() -> None:
    site = (DEPLOY / "nginx.conf.template").read_text()
    found = re.search(r"upstream replicas \{.*?keepalive_timeout (\d+)s;", site, re.DOTALL)
    assert found and int(found[1]) < 5  # --keep-alive
