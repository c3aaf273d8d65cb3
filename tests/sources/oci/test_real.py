"""Push to and fetch from docker-registry, with passwords, tokens and TLS."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import jwt
import pytest

from mcp_skills_server.sources.oci.manifests import INDEX, MANIFEST
from sources.fetching import cache_option, run_command
from sources.oci.registries import REPOSITORY, DockerRegistry, docker_config, docker_registry, htpasswd, self_signed
from sources.publishers import Publisher, ReceivedRequest, respond_with
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.needs_program("docker-registry")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path / "registry") as running:
        yield running


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_skill(folder / "alpha", body="# Alpha\n", references__données_md="é")
    write_skill(folder / "beta", scripts__run_py="print(1)\n")
    return folder


def test_pushed_collection_is_listed_and_cached(registry: DockerRegistry, skills: Path, tmp_path: Path) -> None:
    pushed = run_command("push", skills, registry.named())
    pinned = pushed.stdout.strip()
    assert pinned.startswith(f"oci+http://{registry.host}/{REPOSITORY}@sha256:")
    assert "2 new" in pushed.stderr
    for named in (registry.named(), pinned):
        listed = run_command("list", named, *cache_option(tmp_path)).stdout
        assert "alpha" in listed
        assert "beta" in listed
    assert "references/données.md" in run_command("show", registry.named(), "alpha", *cache_option(tmp_path)).stdout
    (kept,) = (tmp_path / "cache" / "oci").glob("*1.0-*/skills")
    for path in ("alpha/SKILL.md", "alpha/references/données.md", "beta/scripts/run.py"):
        assert (kept / path).read_bytes() == (skills / path).read_bytes()


def test_pushed_skill_is_an_artifact_of_its_own(registry: DockerRegistry, skills: Path, tmp_path: Path) -> None:
    run_command("push", skills / "alpha", registry.named("team/alpha", "2.0"))
    (line,) = run_command("list", registry.named("team/alpha", "2.0"), *cache_option(tmp_path)).stdout.splitlines()[1:]
    assert line.startswith("alpha")
    # `oras pull` writes the file with this name
    request = Request(f"http://{registry.host}/v2/team/alpha/manifests/2.0", headers={"Accept": MANIFEST})
    with urlopen(request, timeout=DEADLINE) as response:
        (layer,) = json.load(response)["layers"]
    assert layer["annotations"] == {"org.opencontainers.image.title": "alpha.tar.gz"}
    pushed = run_command("push", skills, registry.named("team/each", "3"), "--each").stdout.split()
    assert [line.rpartition("@")[0].rpartition("/")[2] for line in pushed] == ["alpha", "beta"]
    assert "beta" in run_command("list", registry.named("team/each/beta", "3"), *cache_option(tmp_path)).stdout


def test_error_for_plain_http_registry_suggests_oci_http(registry: DockerRegistry, tmp_path: Path) -> None:
    done = run_command("list", registry.named().replace("oci+http://", "oci://"), *cache_option(tmp_path), code=2)
    assert "it speaks plain HTTP there: write" in done.stderr
    assert "oci+http://" in done.stderr


def test_push_sends_only_changed_skill(registry: DockerRegistry, skills: Path, tmp_path: Path) -> None:
    def stored_blobs() -> set[tuple[Path, int]]:
        """Return each file of the registry with its modification time."""
        files = (tmp_path / "registry" / "blobs").rglob("data")
        return {(path, path.stat().st_mtime_ns) for path in files}

    first = run_command("push", skills, registry.named()).stdout
    before = stored_blobs()
    second = run_command("push", skills, registry.named())
    assert second.stdout == first
    assert "nothing to send" in second.stderr
    assert stored_blobs() == before
    write_skill(skills / "beta", body="# Other\n")
    assert "1 new" in run_command("push", skills, registry.named()).stderr
    # layer, manifest and index; the configuration is the same
    assert len(stored_blobs() - before) == 3
    assert before <= stored_blobs()
    assert "Other" in run_command("show", registry.named(), "beta", *cache_option(tmp_path)).stdout


def test_push_restores_artifact_that_the_registry_deleted(
    registry: DockerRegistry, skills: Path, tmp_path: Path
) -> None:
    """Retention policies delete artifacts without a tag, such as those of a collection."""
    first = run_command("push", skills, registry.named()).stdout
    place = f"http://{registry.host}/v2/{REPOSITORY}/manifests"
    with urlopen(Request(f"{place}/1.0", headers={"Accept": INDEX}), timeout=DEADLINE) as response:
        lost = json.load(response)["manifests"][1]["digest"]
    urlopen(Request(f"{place}/{lost}", method="DELETE"), timeout=DEADLINE).close()
    listed = run_command("list", registry.named(), *cache_option(tmp_path))
    assert f"beta: {registry.host} has no {REPOSITORY} {lost}" in listed.stderr
    second = run_command("push", skills, registry.named())
    assert second.stdout == first
    assert "1 new" in second.stderr
    assert "beta" in run_command("list", registry.named(), *cache_option(tmp_path)).stdout


@pytest.mark.needs_program("htpasswd", "openssl")
def test_password_is_sent_over_tls(skills: Path, tmp_path: Path) -> None:
    auth = htpasswd(tmp_path / "registry", "ada", "s3cret")
    with docker_registry(tmp_path / "registry", tls=True, auth=auth) as registry:
        trusted = {"SSL_CERT_FILE": str(registry.certificate)}
        known = trusted | {"DOCKER_CONFIG": str(docker_config(tmp_path / "docker", registry.host, "ada", "s3cret"))}
        wrong = trusted | {"DOCKER_CONFIG": str(docker_config(tmp_path / "wrong", registry.host, "ada", "0ther"))}
        without = trusted | {"DOCKER_CONFIG": str(tmp_path / "none")}
        run_command("push", skills, registry.named(), **known)
        assert "alpha" in run_command("list", registry.named(), *cache_option(tmp_path), **known).stdout
        for environment in (wrong, without):
            done = run_command("list", registry.named(), *cache_option(tmp_path / "other"), code=2, **environment)
            assert f"'docker login {registry.host}'" in done.stderr
            assert "s3cret" not in done.stderr
            assert "0ther" not in done.stderr
            assert len(done.stderr.splitlines()) == 1
            done = run_command("push", skills, registry.named(), code=2, **environment)
            assert "asks for permission" in done.stderr
        done = run_command("list", registry.named(), *cache_option(tmp_path / "other"), code=2, SSL_CERT_FILE="")
        assert "cannot be reached" in done.stderr
        assert "certificate" in done.stderr


class TokenServer:
    """A token server for a docker-registry. A token allows no action if the password is missing."""

    def __init__(self, folder: Path, site: Publisher) -> None:
        folder.mkdir()
        certificate, key = self_signed(folder)
        self._key = key.read_bytes()
        self._headers = {"x5c": [base64.b64encode(ssl.PEM_cert_to_DER_cert(certificate.read_text())).decode()]}
        site.routes["/token"] = self._issue
        token = {"realm": f"{site.url}/token", "service": "tests", "issuer": "tests"}
        self.auth = {"token": {**token, "rootcertbundle": str(certificate)}}

    def _issue(self, request: ReceivedRequest) -> Iterator[bytes]:
        query = parse_qs(urlsplit(request.path).query)
        kind, name, actions = query["scope"][0].split(":")
        expected = "Basic " + base64.b64encode(b"ada:s3cret").decode()
        is_known = request.headers.get("authorization") == expected
        allowed = sorted(actions.split(",")) if is_known else []
        now = int(time.time())
        claims: dict[str, object] = {"iss": "tests", "aud": query["service"][0], "sub": "ada", "jti": "x"}
        claims |= {"exp": now + 300, "nbf": now - 10, "iat": now}
        claims["access"] = [{"type": kind, "name": name, "actions": allowed}]
        token = jwt.encode(claims, self._key, "RS256", self._headers)
        yield respond_with(json.dumps({"token": token, "expires_in": 300}).encode(), connection="close")


@pytest.mark.needs_program("openssl")
def test_token_is_fetched_with_scope_of_command(skills: Path, tmp_path: Path) -> None:
    with Publisher() as site:
        tokens = TokenServer(tmp_path / "tokens", site)
        with docker_registry(tmp_path / "registry", auth=tokens.auth) as registry:
            known = {"DOCKER_CONFIG": str(docker_config(tmp_path / "docker", registry.host, "ada", "s3cret"))}
            # another port and plain http of the token server must each be allowed
            done = run_command("push", skills, registry.named(), code=2, **known)
            assert "plain http; --allow-http" in done.stderr
            assert not site.requests
            allowed = ("--allow-http", "--allow-private")
            run_command("push", skills, registry.named(), *allowed, **known)
            assert {each.path.rpartition("%3A")[2] for each in site.requests} == {"pull%2Cpush"}
            site.requests.clear()
            listed = run_command("list", registry.named(), *allowed, *cache_option(tmp_path), **known)
            assert "alpha" in listed.stdout
            assert [each.path.rpartition("%3A")[2] for each in site.requests] == ["pull"]
            without = {"DOCKER_CONFIG": str(tmp_path / "none")}
            done = run_command("list", registry.named(), *allowed, *cache_option(tmp_path / "other"), code=2, **without)
            assert "asks for permission" in done.stderr
