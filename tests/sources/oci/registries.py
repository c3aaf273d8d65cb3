"""OCI registries: Debian's docker-registry, and a fake one that sends any response."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from format.archives import END, block, tar_gz
from mcp_skills_server.sources.oci import manifests
from ports import free_port
from provenance.local_sigstore import BUNDLE
from sources.publishers import Publisher, ReceivedRequest, Route, digest, respond_with

DEADLINE = 30.0
REPOSITORY = "team/skills"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True)
class DockerRegistry:
    """A running docker-registry."""

    port: int
    certificate: Path | None

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    def named(self, repository: str = REPOSITORY, tag: str = "1.0") -> str:
        scheme = "oci" if self.certificate else "oci+http"
        return f"{scheme}://{self.host}/{repository}:{tag}"


@contextmanager
def docker_registry(
    folder: Path, *, tls: bool = False, auth: Mapping[str, Any] | None = None
) -> Iterator[DockerRegistry]:
    """Run a docker-registry on a free port, with its blobs in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    http: dict[str, Any] = {"addr": f"127.0.0.1:{port}", "secret": "of-this-test"}
    certificate = None
    if tls:
        certificate, key = self_signed(folder)
        http["tls"] = {"certificate": str(certificate), "key": str(key)}
    storage = {"filesystem": {"rootdirectory": str(folder / "blobs")}, "delete": {"enabled": True}}
    config = {"version": 0.1, "log": {"level": "info"}, "storage": storage, "http": http, "auth": auth or {}}
    (folder / "config.yml").write_text(json.dumps(config))
    command = ["docker-registry", "serve", str(folder / "config.yml")]
    environment = {"OTEL_TRACES_EXPORTER": "none", "PATH": os.environ["PATH"]}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    try:
        assert any("listening on" in line for line in process.stdout)
        # its log must not fill the pipe
        rest = threading.Thread(target=process.stdout.read, daemon=True)
        rest.start()
        yield DockerRegistry(port, certificate)
    finally:
        process.terminate()
        process.wait(DEADLINE)
    rest.join(DEADLINE)
    process.stdout.close()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Create a certificate for this machine and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words, "-addext", names, *files], check=True, capture_output=True)
    return certificate, key


def htpasswd(folder: Path, name: str, password: str) -> dict[str, Any]:
    """Return the configuration of a registry with this password."""
    folder.mkdir(parents=True, exist_ok=True)
    hashed = subprocess.run(["htpasswd", "-Bbn", name, password], check=True, capture_output=True)
    (folder / "htpasswd").write_bytes(hashed.stdout)
    return {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}


def docker_config(folder: Path, registry: str, name: str, password: str) -> Path:
    """Write a configuration as `docker login` does, and return the folder for DOCKER_CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    pair = base64.b64encode(f"{name}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry: {"auth": pair}}}))
    return folder


def tar(files: Mapping[str, bytes], *, packed: bool = True) -> bytes:
    """Return a layer of these files."""
    blocks = [block(name, raw) for name, raw in files.items()]
    return tar_gz(*blocks) if packed else b"".join(blocks) + END


class FakeRegistry(Publisher):
    """A registry of one repository, whose responses may be false."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def named(self, tag: str = "1.0") -> str:
        return f"oci+http://{self.host}/{REPOSITORY}:{tag}"

    def _route(self, request: ReceivedRequest) -> Route:
        if request.method == "HEAD" and request.path.partition("?")[0] not in self.routes:
            return respond_with(b"", 404)
        return super()._route(request)

    def blob(self, raw: bytes, route: Route | None = None) -> str:
        """Publish a blob and return its digest; `route` is its response, by default the bytes."""
        self.routes[f"/v2/{REPOSITORY}/blobs/{digest(raw)}"] = respond_with(raw) if route is None else route
        return digest(raw)

    def put(self, raw: bytes, *tags: str, media_type: str = manifests.MANIFEST, claim: str = "") -> str:
        """Publish a manifest or index under its digest and these tags; `claim` is a false digest."""
        headers = {"content_type": media_type, "docker_content_digest": claim or digest(raw)}

        def route(request: ReceivedRequest) -> Iterable[bytes]:
            body = b"" if request.method == "HEAD" else raw
            yield respond_with(body, length=len(raw), **headers, connection="close")

        for name in (digest(raw), *tags):
            self.routes[f"/v2/{REPOSITORY}/manifests/{name}"] = route
        return digest(raw)

    def manifest(self, *layers: bytes | dict[str, Any], **changed: Any) -> bytes:
        """Return a manifest of these layers, each the bytes of a `.tar.gz` or a descriptor."""
        described = [each if isinstance(each, dict) else self.layer(each) for each in layers]
        config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest(b"{}"), "size": 2}
        fields = {"schemaVersion": 2, "mediaType": manifests.MANIFEST, "config": config}
        return json.dumps({**fields, "layers": described, **changed}).encode()

    def layer(self, raw: bytes, media_type: str = OCI_LAYER, **annotations: str) -> dict[str, Any]:
        """Publish a blob as a layer, and return its descriptor."""
        descriptor: dict[str, Any] = {"mediaType": media_type, "digest": self.blob(raw), "size": len(raw)}
        if annotations:
            descriptor["annotations"] = annotations
        return descriptor

    def skill(self, name: str, files: Mapping[str, bytes], *tags: str, **changed: Any) -> str:
        """Publish a skill as an artifact, and return its digest."""
        layer = self.layer(tar({f"{name}/{path}": raw for path, raw in files.items()}), manifests.CONTENT)
        return self.put(self.manifest(layer, **({"artifactType": manifests.SKILL} | changed)), *tags)

    def raw_skill(self, files: Mapping[str, bytes], *tags: str, **changed: Any) -> str:
        """Publish a skill with a layer for each file, as `oras push` does, and return its digest."""
        title = manifests.TITLE
        layers = [self.layer(raw, "application/octet-stream", **{title: path}) for path, raw in files.items()]
        return self.put(self.manifest(*layers, **({"artifactType": manifests.SKILL} | changed)), *tags)

    def list_tags(self, *tags: str) -> None:
        """Publish the list of all tags in pages of two."""
        path = f"/v2/{REPOSITORY}/tags/list"

        def route(request: ReceivedRequest) -> Iterable[bytes]:
            start = int(request.path.partition("?from=")[2] or 0)
            more = f'<{path}?from={start + 2}>; rel="next"' if start + 2 < len(tags) else ""
            raw = json.dumps({"name": REPOSITORY, "tags": tags[start : start + 2]}).encode()
            yield respond_with(raw, link=more, connection="close")

        self.routes[path] = route

    def refer(self, subject: str, *bundles: bytes, to: str = "", has_api: bool = True, **entry: Any) -> None:
        """Publish bundles as all referrers of a manifest, `to` a manifest instead of `subject`."""
        entries: list[dict[str, Any]] = []
        for bundle in bundles:
            layer = self.layer(bundle, BUNDLE)
            raw = self.manifest(layer, artifactType=BUNDLE, subject={"digest": to or subject})
            entries.append({"digest": self.put(raw), "artifactType": BUNDLE, **entry})
        raw = json.dumps({"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": entries}).encode()
        if has_api:
            self.routes[f"/v2/{REPOSITORY}/referrers/{subject}"] = respond_with(raw)
        else:
            self.put(raw, subject.replace(":", "-"), media_type=manifests.INDEX)

    def collection(self, skills: Mapping[str, str], *tags: str) -> str:
        """Publish an index of artifacts, by skill name, and return its digest."""
        entries = [
            {"mediaType": manifests.MANIFEST, "digest": each, "size": 1, "annotations": {manifests.SKILL_NAME: name}}
            for name, each in skills.items()
        ]
        raw = json.dumps({"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": entries}).encode()
        return self.put(raw, *tags, media_type=manifests.INDEX)
