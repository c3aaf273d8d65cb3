"""`/refresh`: webhooks of code hosts that make the server poll its sources at once."""

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
from web.http_wire import Server, Target, bearer_header, http_serving, wait_until
from web.in_process import app_serving
from wire import write_skill

TOKEN = "a-token-of-some-length"
SECRET = "0123456789abcdef-secret"
SECRETS = {"MCP_SKILLS_REFRESH_SECRET": SECRET, "MCP_SKILLS_TOKENS": f"laptop={TOKEN}"}
BODY = b'{"ref": "refs/heads/main"}'
CODE = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
GITLAB = {"X-Gitlab-Token": SECRET}
WRONG = hmac.new(b"another secret of some length", BODY, hashlib.sha256).hexdigest()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_skill(tmp_path_factory.mktemp("published") / "thing").parent


@pytest.fixture(scope="module")
def site(published: Path) -> Iterator[Server]:
    with http_serving(published) as server:
        yield server


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def mirror(site: Server, audit_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server whose source is the site, with a token and a webhook secret."""
    cache = tmp_path_factory.mktemp("cache")
    options = ("--allow-private", "--allow-http", "--cache-dir", cache, "--audit-log", audit_log)
    with app_serving(f"http://127.0.0.1:{site.port}", *options, environment=SECRETS) as server:
        yield server


@each_row("proof", [
    {"X-Hub-Signature-256": f"sha256={CODE}"}, {"X-Gitea-Signature": CODE}, {"X-Forgejo-Signature": CODE},
    GITLAB, {"X-Gitea-Signature": WRONG, "X-Hub-Signature-256": f"sha256={CODE}"},
])  # fmt: skip
def test_proof_of_each_code_host_is_accepted(mirror: Target, proof: dict[str, str]) -> None:
    reply = mirror.send(path="/refresh", body=BODY, headers=proof)
    assert (reply.status, json.loads(reply.body)) == (202, {"sources": 1})


@each_row("proof", [
    {}, {"X-Hub-Signature-256": CODE}, {"X-Hub-Signature-256": f"sha256={WRONG}"},
    {"X-Hub-Signature-256": "sha256=\xe9"}, {"X-Hub-Signature": f"sha256={CODE}"}, {"X-Gitea-Signature": WRONG},
    {"X-Gitea-Signature": ""}, {"X-Gitlab-Token": SECRET[:-1]}, {"X-Gitlab-Token": ""}, bearer_header(TOKEN),
])  # fmt: skip
def test_missing_or_wrong_proof_is_refused_and_audited(mirror: Target, audit_log: Path, proof: dict[str, str]) -> None:
    reply = mirror.send(path="/refresh", body=BODY, headers=proof)
    assert reply.status == 401
    assert "set the same secret" in json.loads(reply.body)["error"]
    mirror.wait_for_log("/refresh: refused: the signature is missing or does not match the secret")
    assert SECRET not in mirror.stderr
    assert mirror.stderr.count("/refresh: refused") < 5  # repeats are counted, not logged one by one
    records = [json.loads(line) for line in audit_log.read_text(encoding="utf-8").splitlines()]
    assert [each["event"] for each in records if each.get("reason") == "webhook-secret"]


def test_signature_of_another_body_is_refused(mirror: Target) -> None:
    proof = {"X-Hub-Signature-256": f"sha256={CODE}"}
    assert mirror.send(path="/refresh", body=BODY + b" ", headers=proof).status == 401


def test_secret_opens_no_other_path_and_body_is_bounded(mirror: Target) -> None:
    for path in ("/mcp", "/refresh/more", "/refreshed", "/.well-known/agent-skills/index.json"):
        assert mirror.send(path=path, body=b"{}", headers=GITLAB).status in {401, 404}
    assert mirror.send("GET", "/refresh").status == 405
    assert mirror.send(path="/refresh", body=bytes(25 << 20)).status == 401
    assert mirror.send(path="/refresh", body=bytes((25 << 20) + 1)).status == 413


def test_refresh_bypasses_cached_index(mirror: Target, site: Server, published: Path) -> None:
    mirror.wait_for_log("added thing")
    before = site.send("GET", "/.well-known/agent-skills/index.json").body
    write_skill(published / "thing", description="Does another thing.")
    wait_until(lambda: site.send("GET", "/.well-known/agent-skills/index.json").body != before)
    assert mirror.send(path="/refresh", body=BODY, headers=GITLAB).status == 202
    mirror.wait_for_log("changed thing")


@each_row("secret", ["short", "x" * 15, "a secret with\na line", "sécrét of some length"])
def test_malformed_secret_is_usage_error_that_does_not_show_it(secret: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_secret(secret)
    assert secret not in str(caught.value)
    assert checked_secret("x" * 16) == b"x" * 16


def test_wrong_proofs_count_as_failed_authentications(published: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[quota]\nfailed-authentications-per-minute = 2\n")
    with app_serving(published, "--config", config, environment=SECRETS) as server:
        wrong, right = {"X-Gitea-Signature": WRONG}, {"X-Gitea-Signature": CODE}
        assert server.send("POST", "/mcp", b"{}").status == 401
        statuses = [server.send(path="/refresh", body=BODY, headers=wrong).status for _ in range(2)]
        assert statuses == [401, 429]
        assert server.send(path="/refresh", body=BODY, headers=right).status == 202


def test_refresh_polls_no_folder_and_is_off_without_secret(
    published: Path, site: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with app_serving(published, environment={"MCP_SKILLS_REFRESH_SECRET": SECRET}) as server:
        assert "every ROOT is a folder" in caplog.text
        reply = server.send(path="/refresh", body=BODY, headers=GITLAB)
        assert (reply.status, json.loads(reply.body)) == (202, {"sources": 0})
    assert site.send(path="/refresh", body=BODY, headers=GITLAB).status == 404
