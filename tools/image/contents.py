"""What was built: what the image says of itself, what is in it, and whether deploy/ fits it."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml
from tools.image.buildah import Buildah
from tools.image.settings import PORT, ROOT
from tools.image.steps import Steps

from mcp_skills_server.commands.serve import serve


def look_at(buildah: Buildah, image: str, place: Path, scratch: Path, steps: Steps) -> dict[str, Any]:
    """Check what the image says of itself and what it contains; its configuration."""
    steps.step("what was built")
    inspected = json.loads(buildah("inspect", "--type", "image", image))
    config: dict[str, Any] = inspected["Docker"]["config"]
    for key in ("User", "Entrypoint", "Cmd", "StopSignal", "Volumes", "ExposedPorts"):
        steps.saw(f"{key}: {json.dumps(config.get(key))}")
    steps.saw(f"Healthcheck: {json.dumps(config['Healthcheck']['Test'])}")
    uid = config["User"].partition(":")[0]
    steps.check(uid.isdecimal() and int(uid) > 0, f"the user is a number and not root: {config['User']}")
    steps.check(config["Entrypoint"] == ["/app/bin/mcp-skills-server"], "the entry point is in exec form, no shell")
    steps.check(config["StopSignal"] in {"SIGTERM", "15"}, "it is stopped by SIGTERM")
    steps.check(list(config["Volumes"]) == ["/skills"], "/skills is the volume")
    steps.check(list(config["ExposedPorts"]) == [f"{PORT}/tcp"], f"port {PORT} is exposed")
    labels = {key.rpartition(".")[2]: value for key, value in config["Labels"].items() if ".opencontainers." in key}
    steps.check({"title", "description", "licenses", "version", "revision"} <= set(labels), "it has the OCI labels")
    packages = next((place / "app" / "lib").glob("python3.*")) / "site-packages"
    bare = [each for each in packages.rglob("*.py") if not any(each.parent.glob(f"__pycache__/{each.stem}.*.pyc"))]
    steps.check(not bare, f"each module of the {len(list(packages.glob('*.dist-info')))} packages has its bytecode")
    writable = [
        each
        for each in (place / "app").rglob("*")
        if not each.is_symlink() and (each.stat().st_uid != 0 or each.stat().st_mode & 0o022)
    ]
    steps.check(not writable, "all of /app belongs to root, and nobody else may write there")
    left = [each for each in ("build", "app/bin/pip", "etc/pip.conf") if (place / each).exists()]
    steps.check(not left and not any((place / "mnt").iterdir()), "nothing is left of pip, the wheels and the sources")
    size = _weigh(place)
    app = _weigh(place / "app")
    steps.saw(f"size: {size / 1e6:.0f} MB, of which /app {app / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory(dir=scratch) as archive:
        buildah("push", "--quiet", image, f"oci:{archive}")
        steps.saw(f"compressed: {_weigh(Path(archive)) / 1e6:.0f} MB")
    return config


def _weigh(place: Path) -> int:
    """Bytes of all files below."""
    return sum(each.lstat().st_size for each in place.rglob("*") if each.is_file() and not each.is_symlink())


def check_manifests(config: dict[str, Any], steps: Steps) -> None:
    """The files in deploy/ and the page about them must fit the image and the server."""
    steps.step("deploy/ and docs/container.md beside the image")
    known = {f"MCP_SKILLS_{each.name.upper()}" for each in serve.params if each.name}
    for name in ("Dockerfile", "deploy/compose.yaml", "deploy/kubernetes/base/deployment.yaml", "docs/container.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        used = set(re.findall(r"MCP_SKILLS_[A-Z_]*[A-Z]", text))
        steps.check(
            used <= known, f"{name}: its {len(used)} variables are options of serve {used - known or ''}".rstrip()
        )
    user, group = map(int, config["User"].split(":"))
    manifest = ROOT / "deploy" / "kubernetes" / "base" / "deployment.yaml"
    pod = yaml.safe_load(manifest.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    security = pod["securityContext"]
    ids = [security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")]
    steps.check(ids == [user, group, group] and security["runAsNonRoot"], "deployment.yaml: the user of the image")
    (port,) = pod["containers"][0]["ports"]
    steps.check(port["containerPort"] == PORT, f"deployment.yaml: port {PORT}")
