"""Registries for the tests: Debian's docker-registry as it is, and one that says whatever a test wants it to."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from format.archives import END, block, tar_gz
from mcp_skills_server.sources.oci import manifests
from sources.publishers import Asked, Publisher, Route, answer, digest

DEADLINE = 30.0
REPOSITORY = "team/skills"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True)
class Real:
    """A docker-registry that runs."""

    port: int
    certificate: Path | None

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    def named(self, repository: str = REPOSITORY, tag: str = "1.0") -> str:
        return f"{'oci' if self.certificate else 'oci+http'}://{self.host}/{repository}:{tag}"


@contextmanager
def docker_registry(folder: Path, *, tls: bool = False, auth: Mapping[str, Any] | None = None) -> Iterator[Real]:
    """Debian's registry on a free port, its blobs in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    http: dict[str, Any] = {"addr": f"127.0.0.1:{port}", "secret": "of-this-test"}
    certificate = None
    if tls:
        certificate, key = self_signed(folder)
        http["tls"] = {"certificate": str(certificate), "key": str(key)}
    storage = {"filesystem": {"rootdirectory": str(folder / "blobs")}, "delete": {"enabled": True}}
    config = {"version": 0.1, "log": {"level": "info"}, "storage": storage, "http": http, "auth": auth or {}}
    (folder / "config.yml").write_text(json.dumps(config))
    words, environment = ["docker-registry", "serve", str(folder / "config.yml")], {"OTEL_TRACES_EXPORTER": "none"}
    environment |= {"PATH": os.environ["PATH"]}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    try:
        assert any("listening on" in line for line in process.stdout)
        rest = threading.Thread(target=process.stdout.read, daemon=True)  # what it says must not fill the pipe
        rest.start()
        yield Real(port, certificate)
    finally:
        process.terminate()
        process.wait(DEADLINE)
    rest.join(DEADLINE)
    process.stdout.close()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    places = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words, "-addext", names, *places], check=True, capture_output=True)
    return certificate, key


def htpasswd(folder: Path, name: str, password: str) -> dict[str, Any]:
    """The configuration of a registry that wants this password."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(["htpasswd", "-Bbn", name, password], check=True, capture_output=True)
    (folder / "htpasswd").write_bytes(made.stdout)
    return {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}


def docker_config(folder: Path, registry: str, name: str, password: str, **more: Any) -> Path:
    """What `docker login` writes; the folder for DOCKER_CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    pair = base64.b64encode(f"{name}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry: {"auth": pair}}, **more}))
    return folder


def tar(files: Mapping[str, bytes], *, packed: bool = True) -> bytes:
    """A layer of these files."""
    blocks = [block(name, raw) for name, raw in files.items()]
    return tar_gz(*blocks) if packed else b"".join(blocks) + END


class Fake(Publisher):
    """A registry of one repository that an honest publisher, a broken server or an enemy runs."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def named(self, tag: str = "1.0") -> str:
        return f"oci+http://{self.host}/{REPOSITORY}:{tag}"

    def _route(self, asked: Asked) -> Route:
        absent = asked.path.partition("?")[0] not in self.routes
        return answer(b"", 404) if absent and asked.method == "HEAD" else super()._route(asked)

    def blob(self, raw: bytes, route: Route | None = None) -> str:
        """A blob; `route` answers in the place of its bytes."""
        self.routes[f"/v2/{REPOSITORY}/blobs/{digest(raw)}"] = answer(raw) if route is None else route
        return digest(raw)

    def put(self, raw: bytes, *tags: str, media_type: str = manifests.MANIFEST, said: str = "") -> str:
        """A manifest or an index below its digest and these tags; `said` lies about the digest."""
        headers = {"content_type": media_type, "docker_content_digest": said or digest(raw)}

        def route(asked: Asked) -> Iterable[bytes]:
            yield answer(b"" if asked.method == "HEAD" else raw, length=len(raw), **headers, connection="close")

        for name in (digest(raw), *tags):
            self.routes[f"/v2/{REPOSITORY}/manifests/{name}"] = route
        return digest(raw)

    def manifest(self, *layers: bytes | dict[str, Any], **changed: Any) -> bytes:
        """A manifest of these layers, each bytes of a `.tar.gz` or a whole descriptor."""
        described = [each if isinstance(each, dict) else self.layer(each) for each in layers]
        config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest(b"{}"), "size": 2}
        seen = {"schemaVersion": 2, "mediaType": manifests.MANIFEST, "config": config, "layers": described} | changed
        return json.dumps({key: value for key, value in seen.items() if value is not ...}).encode()

    def layer(self, raw: bytes, media_type: str = OCI_LAYER, **annotations: str) -> dict[str, Any]:
        """A blob and its descriptor."""
        found: dict[str, Any] = {"mediaType": media_type, "digest": self.blob(raw), "size": len(raw)}
        return found | ({"annotations": annotations} if annotations else {})

    def skill(self, name: str, files: Mapping[str, bytes], *tags: str, **changed: Any) -> str:
        """A skill as an artifact; its digest."""
        layer = self.layer(tar({f"{name}/{path}": raw for path, raw in files.items()}), manifests.CONTENT)
        return self.put(self.manifest(layer, **({"artifactType": manifests.SKILL} | changed)), *tags)

    def collection(self, skills: Mapping[str, str], *tags: str) -> str:
        """An index of artifacts, by the names of their skills; its digest."""
        entries = [
            {"mediaType": manifests.MANIFEST, "digest": each, "size": 1, "annotations": {manifests.SKILL_NAME: name}}
            for name, each in skills.items()
        ]
        raw = json.dumps({"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": entries}).encode()
        return self.put(raw, *tags, media_type=manifests.INDEX)
