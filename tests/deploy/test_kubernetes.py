"""The Kubernetes deployment: its schemas, references, hardening, drain, and network policy.

`build` implements the features of Kustomize that these files use: resources, generated ConfigMaps,
labels, images, a namespace and JSON patches. If `make interop` has installed Kustomize, a test
compares its output with that of `build`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tools.interop.setup import MODULES

from deploy.test_compose import serve_default, serve_variables
from mcp_skills_server.commands.config_file import parse
from tables import each_row
from wire import DEADLINE, ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.33", "1.37")
"""The oldest version in docs/container.md, and the newest with schemas."""
KUSTOMIZE = MODULES / "@install-binary" / "kustomize-linux-x64" / "kustomize-linux-x64"
BASE = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap"}
KEYS = {
    "apiVersion", "kind", "labels", "resources", "configMapGenerator", "generatorOptions", "namespace", "images",
    "patches",
}  # fmt: skip

Manifest = dict[str, Any]
Manifests = dict[str, Manifest]


def build(folder: Path) -> Manifests:
    """Return the manifests of a folder by kind. Each kind has one."""
    kustomization: Manifest = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert kustomization.keys() <= KEYS and kustomization["kind"] == "Kustomization"
    out: Manifests = {}
    for name in kustomization["resources"]:
        path = folder / name
        if path.is_dir():
            more = build(path)
        else:
            more = {each["kind"]: each for each in yaml.safe_load_all(path.read_text())}
        assert not out.keys() & more.keys()
        out |= more
    for generator in kustomization["configMapGenerator"]:
        assert (generator.get("behavior", "create") == "replace") == ("ConfigMap" in out)
        data = {name: (folder / name).read_text(encoding="utf-8") for name in generator["files"]}
        metadata = out.get("ConfigMap", {}).get("metadata", {}) | {"name": generator["name"]}
        out["ConfigMap"] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    for patch in kustomization.get("patches", ()):
        target = out[patch["target"]["kind"]]
        assert target["metadata"]["name"] == patch["target"]["name"]
        for change in yaml.safe_load(patch["patch"]):
            _patch(target, change)
    for image in kustomization.get("images", ()):
        (container,) = out["Deployment"]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == image["name"]
        container["image"] = f"{image['newName']}:{image['newTag']}"
    for manifest in out.values():
        for labels in kustomization.get("labels", ()):
            assert labels.keys() == {"pairs"}  # selectors get no labels
            manifest["metadata"].setdefault("labels", {}).update(labels["pairs"])
        if "namespace" in kustomization and manifest["kind"] != "Namespace":
            manifest["metadata"]["namespace"] = kustomization["namespace"]
    return out


def _patch(target: Any, change: Manifest) -> None:
    """Apply one operation of a JSON patch (RFC 6902)."""
    *above, last = change["path"].strip("/").split("/")
    for part in above:
        target = target[int(part) if isinstance(target, list) else part]
    assert last in target
    if change["op"] == "remove":
        del target[last]
    else:
        assert change["op"] == "replace"
        target[last] = change["value"]


def configuration(manifests: Manifests) -> Mapping[str, Any]:
    return parse(manifests["ConfigMap"]["data"]["config.toml"].encode(), "config.toml").values


def pod_of(manifests: Manifests) -> tuple[Manifest, Manifest]:
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@pytest.fixture(params=["base", "overlays/example"])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return build(KUBERNETES / request.param)


@pytest.fixture
def overlay() -> Manifests:
    return build(KUBERNETES / "overlays" / "example")


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(manifests: Manifests, version: str) -> None:
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    manifests["Service"]["spec"]["port"] = 1  # an unknown field is refused
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests["Service"], version, strict=True)


@pytest.mark.skipif(not KUSTOMIZE.exists(), reason="make interop installs Kustomize")
def test_kustomize_adds_components_and_removes_replaced_autoscaler(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "overlays" / "example"
    with (folder / "kustomization.yaml").open("a") as file:
        file.write("components:\n  - ../../monitoring\n  - ../../keda\n")
    command = [KUSTOMIZE, "build", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    kinds = {each["kind"] for each in yaml.safe_load_all(done.stdout)}
    expected = BASE | {"Namespace", "Ingress", "ServiceMonitor", "ScaledObject"}
    assert (done.returncode, done.stderr, kinds) == (0, "", expected)


def test_base_and_overlay_are_complete(manifests: Manifests, overlay: Manifests) -> None:
    assert manifests.keys() >= BASE
    assert configuration(manifests)["roots"] == ("/skills",)
    assert overlay.keys() == BASE | {"Namespace", "Ingress", "HorizontalPodAutoscaler"}
    for folder in (KUBERNETES / "base", KUBERNETES / "overlays" / "example"):
        text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
        kustomization = yaml.safe_load(text)
        named = {*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"], "kustomization.yaml"}
        assert {each.name for each in folder.iterdir()} <= named


def test_selectors_match_labels_of_pods(manifests: Manifests) -> None:
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    policy = manifests["NetworkPolicy"]["spec"]
    assert manifests["Service"]["spec"]["selector"] == labels
    assert policy["podSelector"]["matchLabels"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert manifests[kind]["spec"]["selector"]["matchLabels"] == labels
    pod, container = pod_of(manifests)
    ports = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in manifests["Service"]["spec"]["ports"]} == ports
    assert {each["port"] for rule in policy["ingress"] for each in rule["ports"]} == ports
    volumes = {each["name"] for each in pod["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes


def test_pods_are_restricted_and_write_only_to_volumes(manifests: Manifests) -> None:
    pod, container = pod_of(manifests)
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    kinds = {each["name"]: {*each} - {"name"} for each in pod["volumes"]}
    assert set().union(*kinds.values()) == {"persistentVolumeClaim", "configMap", "secret", "emptyDir"}
    written = {each["name"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert written == {name for name, kind in kinds.items() if kind == {"emptyDir"}}
    assert all(each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each)
    # Secrets are referenced, not included.
    assert "Secret" not in manifests
    assert {each["name"] for each in container["env"] if "valueFrom" in each} == {"MCP_SKILLS_REDIS"}


def test_pods_have_time_to_drain_and_one_stays_available(manifests: Manifests) -> None:
    pod, container = pod_of(manifests)
    drain = int(next(each["value"] for each in container["env"] if each["name"] == "MCP_SKILLS_DRAIN"))
    wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert wait + drain + 2 < pod["terminationGracePeriodSeconds"]
    probe = container["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < drain
    paths = [container[key]["httpGet"]["path"] for key in ("livenessProbe", "readinessProbe", "startupProbe")]
    assert paths == ["/healthz", "/readyz", "/healthz"]
    spec, scaler = manifests["Deployment"]["spec"], manifests.get("HorizontalPodAutoscaler")
    if scaler is None:
        assert spec["replicas"] >= 2
    else:
        assert scaler["spec"]["minReplicas"] >= 2
        assert "replicas" not in spec  # the autoscaler sets it
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert manifests["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_ingress_requires_tls_and_policy_admits_only_proxy(overlay: Manifests) -> None:
    ingress, policy = overlay["Ingress"]["spec"], overlay["NetworkPolicy"]["spec"]
    hosts = [each["host"] for each in ingress["rules"]]
    assert [host for each in ingress["tls"] for host in each["hosts"]] == hosts
    backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
    port, probes = overlay["Service"]["spec"]["ports"]
    assert probes["targetPort"] == "probes"
    assert backend["name"] == overlay["Service"]["metadata"]["name"]
    assert backend["port"]["name"] == port["name"]
    assert all("namespaceSelector" in each for rule in policy["ingress"] for each in rule["from"])
    values = configuration(overlay)
    assert [*values["allowed_host"]] == hosts
    assert values["trusted_proxy"]
    labels = overlay["Namespace"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_network_policy_allows_prometheus_in_and_git_out(manifests: Manifests) -> None:
    policy = manifests["NetworkPolicy"]["spec"]
    prometheus = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    }
    assert [prometheus] in [rule["from"] for rule in policy["ingress"]]
    (outside,) = (rule for rule in policy["egress"] if "ipBlock" in rule["to"][0])
    assert {each["port"] for each in outside["ports"]} == {443, 22}


def test_monitoring_component_matches_service_and_enables_metrics(manifests: Manifests) -> None:
    folder = KUBERNETES / "monitoring"
    component = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert component["kind"] == "Component"
    assert {each.name for each in folder.iterdir()} == {*component["resources"], "kustomization.yaml"}
    monitor = yaml.safe_load((folder / "servicemonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["endpoints"]
    service = manifests["Service"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    (patch,) = component["patches"]
    assert patch["target"]["name"] == manifests[patch["target"]["kind"]]["metadata"]["name"]
    (change,) = yaml.safe_load(patch["patch"])
    assert change["value"]["name"] in serve_variables()


def test_keda_component_scales_on_clients_instead_of_cpu_alone(overlay: Manifests) -> None:
    folder = KUBERNETES / "keda"
    component = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert component["kind"] == "Component"
    assert {each.name for each in folder.iterdir()} == {*component["resources"], "kustomization.yaml"}
    (patch,) = component["patches"]
    replaced = overlay[patch["target"]["kind"]]
    change = yaml.safe_load(patch["patch"])
    assert change["$patch"] == "delete"
    for field in ("kind", "apiVersion"):
        assert change[field] == replaced[field]
    assert change["metadata"]["name"] == patch["target"]["name"] == replaced["metadata"]["name"]
    spec = yaml.safe_load((folder / "scaledobject.yaml").read_text())["spec"]
    assert spec["scaleTargetRef"]["name"] == overlay["Deployment"]["metadata"]["name"]
    clients, cpu = spec["triggers"]
    assert cpu["metadata"]["value"] == replaced["spec"]["metrics"][0]["resource"]["target"]["averageValue"]
    assert spec["minReplicaCount"] == replaced["spec"]["minReplicas"]
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == replaced["spec"]["behavior"]
    streams = serve_default("max_connections") * 7 // 8
    assert int(clients["metadata"]["threshold"]) * 3 / 2 <= streams  # two of three take what the third had


@each_row("file", ["config.toml", "kubernetes/base/config.toml", "kubernetes/overlays/example/config.toml"])
def test_commented_out_source_of_configuration_is_valid(file: str) -> None:
    text = (ROOT / "deploy" / file).read_text()
    before, _, comment = text.partition("# [[source]]\n")
    table = "".join(line.removeprefix("# ") for line in comment.splitlines(keepends=True))
    parsed = parse(f"{before}[[source]]\n{table}".encode(), file)
    assert "git+https://git.example/acme/skills@main#skills" in parsed.values["roots"]
