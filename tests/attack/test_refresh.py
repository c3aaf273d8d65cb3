"""A flood of wrong webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from web.http_wire import Server, http_serving
from wire import write_skill

SECRET = "0123456789abcdef-secret"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Server]:
    write_skill(tmp_path / "published" / "thing")
    options = ["--allow-private", "--allow-http", "--cache-dir", str(tmp_path / "cache")]
    with (
        http_serving(tmp_path / "published") as site,
        http_serving(
            f"http://127.0.0.1:{site.port}",
            *options,
            environment={"MCP_SKILLS_REFRESH_SECRET": "0123456789abcdef-secret"},
        ) as server,
    ):
        yield server


def test_wrong_webhooks_do_not_fill_the_log(reader: Server) -> None:
    """Other refusals of strangers are counted and not each written (REPEATS)."""
    answers = [reader.send(path="/refresh", body=b"{}").status for _ in range(300)]
    assert answers[0] == 401
    assert set(answers) == {401, 429}
    reader.said("/refresh: refused")
    written = [line for line in reader.stderr.splitlines() if "/refresh: refused" in line]
    assert len(written) < 50
