"""`/refresh`: a host of skills says that they changed, and the server looks at once."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.refresh import checked_secret
from tables import each_row
from web.http_wire import Server, bearing, http_serving, until
from wire import write_skill

TOKEN = "a-token-of-some-length"
SECRET = "0123456789abcdef-secret"
BODY = b'{"ref": "refs/heads/main"}'
CODE = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
WRONG = hmac.new(b"another secret of some length", BODY, hashlib.sha256).hexdigest()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    write_skill(folder / "thing")
    return folder


@pytest.fixture(scope="module")
def site(published: Path) -> Iterator[Server]:
    with http_serving(published) as server:
        yield server


@pytest.fixture(scope="module")
def reader(site: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server of the site's skills, which asks for a token and knows the secret; and its audit log."""
    folder = tmp_path_factory.mktemp("reader")
    options = ["--allow-private", "--allow-http", "--cache-dir", folder / "cache", "--audit-log", folder / "log"]
    secrets = {"MCP_SKILLS_REFRESH_SECRET": SECRET, "MCP_SKILLS_TOKENS": f"laptop={TOKEN}"}
    with http_serving(f"http://127.0.0.1:{site.port}", *options, environment=secrets) as server:
        yield server, folder / "log"


@each_row(
    "proof",
    [
        {"X-Hub-Signature-256": f"sha256={CODE}"}, {"X-Gitea-Signature": CODE}, {"X-Forgejo-Signature": CODE},
        {"X-Gitlab-Token": SECRET}, {"X-Gitea-Signature": WRONG, "X-Hub-Signature-256": f"sha256={CODE}"},
    ],
)  # fmt: skip
def test_each_host_has_its_own_form_of_proof(reader: tuple[Server, Path], proof: dict[str, str]) -> None:
    answer = reader[0].send(path="/refresh", body=BODY, headers=proof)
    assert (answer.status, json.loads(answer.body)) == (202, {"sources": 1})


@each_row(
    "proof",
    [
        {}, {"X-Hub-Signature-256": CODE}, {"X-Hub-Signature-256": f"sha256={WRONG}"},
        {"X-Hub-Signature-256": "sha256=\xe9"}, {"X-Hub-Signature": f"sha256={CODE}"}, {"X-Gitea-Signature": WRONG},
        {"X-Gitea-Signature": ""}, {"X-Gitlab-Token": SECRET[:-1]}, {"X-Gitlab-Token": ""}, bearing(TOKEN),
    ],
)  # fmt: skip
def test_who_does_not_prove_that_they_know_the_secret_is_refused(
    reader: tuple[Server, Path], proof: dict[str, str]
) -> None:
    server, audit = reader
    answer = server.send(path="/refresh", body=BODY, headers=proof)
    assert answer.status == 401
    assert "set the same secret" in json.loads(answer.body)["error"]
    server.said("/refresh: refused: the signature is missing or does not match the secret")
    assert SECRET not in server.stderr
    recorded = [json.loads(each) for each in audit.read_text(encoding="utf-8").splitlines()]
    assert [each["event"] for each in recorded if each.get("reason") == "webhook-secret"]
    other = server.send(path="/refresh", body=BODY + b" ", headers={"X-Hub-Signature-256": f"sha256={CODE}"})
    assert other.status == 401, "a signature is of one body"


def test_the_token_is_still_wanted_elsewhere_and_a_body_is_bounded(reader: tuple[Server, Path]) -> None:
    for path in ("/mcp", "/refresh/more", "/refreshed", "/.well-known/agent-skills/index.json"):
        assert reader[0].send(path=path, body=b"{}", headers={"X-Gitlab-Token": SECRET}).status in {401, 404}
    assert reader[0].send("GET", "/refresh").status == 405
    assert [reader[0].send(path="/refresh", body=bytes((25 << 20) + more)).status for more in (0, 1)] == [401, 413]


def test_a_change_is_there_without_waiting_for_the_next_look(
    reader: tuple[Server, Path], site: Server, published: Path
) -> None:
    reader[0].said("added thing")
    before = site.send("GET", "/.well-known/agent-skills/index.json").body
    write_skill(published / "thing", description="Does another thing.")
    until(lambda: site.send("GET", "/.well-known/agent-skills/index.json").body != before)
    # The site's index may be kept for a minute and more.
    assert reader[0].send(path="/refresh", body=BODY, headers={"X-Gitlab-Token": SECRET}).status == 202
    reader[0].said("changed thing")


@each_row("secret", ["short", "x" * 15, "a secret with\na line", "sécrét of some length"])
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_secret(secret)
    assert secret not in str(caught.value)
    assert checked_secret("x" * 16) == b"x" * 16


def test_wrong_proofs_count_as_failed_authentications(published: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[quota]\nfailed-authentications-per-minute = 2\n")
    secrets = {"MCP_SKILLS_REFRESH_SECRET": SECRET, "MCP_SKILLS_TOKENS": f"laptop={TOKEN}"}
    with http_serving(published, "--config", config, environment=secrets) as server:
        wrong, right = {"X-Gitea-Signature": WRONG}, {"X-Gitea-Signature": CODE}
        assert server.send("POST", "/mcp", b"{}").status == 401
        statuses = [server.send(path="/refresh", body=BODY, headers=wrong).status for _ in range(2)]
        assert statuses == [401, 429]
        assert server.send(path="/refresh", body=BODY, headers=right).status == 202


def test_folders_alone_are_not_fetched_and_without_a_secret_is_no_such_place(published: Path, site: Server) -> None:
    given = {"path": "/refresh", "body": BODY, "headers": {"X-Gitlab-Token": SECRET}}
    with http_serving(published, environment={"MCP_SKILLS_REFRESH_SECRET": SECRET}) as server:
        server.said("every ROOT is a folder")
        answer = server.send(**given)
        assert (answer.status, json.loads(answer.body)) == (202, {"sources": 0})
    assert site.send(**given).status == 404
