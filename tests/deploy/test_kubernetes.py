"""`deploy/kubernetes/`: what Kustomize makes of it, by the schemas of Kubernetes, and what it must not lack.

`built` does what these few files ask of Kustomize: resources, generated ConfigMaps, labels, images, a namespace and
JSON patches. Where `make interop` has installed Kustomize itself, it has to build the same.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tools.interop.setup import MODULES

from deploy.test_compose import known
from mcp_skills_server.commands.config_file import parse
from tables import each_row
from wire import DEADLINE, ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.33", "1.37")
"""The oldest that docs/container.md names, and the newest whose schemas there are."""
KUSTOMIZE = MODULES / "@install-binary" / "kustomize-linux-x64" / "kustomize-linux-x64"
BASE = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap"}
KEYS = {
    "apiVersion", "kind", "labels", "resources", "configMapGenerator", "generatorOptions", "namespace", "images",
    "patches",
}  # fmt: skip

Manifest = dict[str, Any]
Built = dict[str, Manifest]


def built(folder: Path) -> Built:
    """The manifests that a folder stands for, by kind: there is one of each."""
    asked: Manifest = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert asked.keys() <= KEYS and asked["kind"] == "Kustomization"
    out: Built = {}
    for name in asked["resources"]:
        path = folder / name
        more = built(path) if path.is_dir() else {each["kind"]: each for each in yaml.safe_load_all(path.read_text())}
        assert not out.keys() & more.keys()
        out |= more
    for generator in asked["configMapGenerator"]:
        assert (generator.get("behavior", "create") == "replace") == ("ConfigMap" in out)
        data = {name: (folder / name).read_text(encoding="utf-8") for name in generator["files"]}
        metadata = out.get("ConfigMap", {}).get("metadata", {}) | {"name": generator["name"]}
        out["ConfigMap"] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    for patch in asked.get("patches", ()):
        target = out[patch["target"]["kind"]]
        assert target["metadata"]["name"] == patch["target"]["name"]
        for change in yaml.safe_load(patch["patch"]):
            _patch(target, change)
    for image in asked.get("images", ()):
        (container,) = out["Deployment"]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == image["name"]
        container["image"] = f"{image['newName']}:{image['newTag']}"
    for manifest in out.values():
        for labels in asked.get("labels", ()):
            assert labels.keys() == {"pairs"}  # and no selector gets any
            manifest["metadata"].setdefault("labels", {}).update(labels["pairs"])
        if "namespace" in asked and manifest["kind"] != "Namespace":
            manifest["metadata"]["namespace"] = asked["namespace"]
    return out


def _patch(target: Any, change: Manifest) -> None:
    """One operation of a JSON patch (RFC 6902)."""
    *above, last = change["path"].strip("/").split("/")
    for part in above:
        target = target[int(part) if isinstance(target, list) else part]
    assert last in target  # what is removed or replaced is there
    if change["op"] == "remove":
        del target[last]
    else:
        assert change["op"] == "replace"
        target[last] = change["value"]


def configuration(manifests: Built) -> Mapping[str, Any]:
    """What the generated file says, by option."""
    return parse(manifests["ConfigMap"]["data"]["config.toml"].encode(), "config.toml").values


def pod_of(manifests: Built) -> tuple[Manifest, Manifest]:
    """The pod and its container."""
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@pytest.fixture(params=["base", "overlays/example"])
def manifests(request: pytest.FixtureRequest) -> Built:
    return built(KUBERNETES / request.param)


@pytest.fixture
def overlay() -> Built:
    return built(KUBERNETES / "overlays" / "example")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_manifest_is_what_kubernetes_reads(manifests: Built, version: str) -> None:
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    manifests["Service"]["spec"]["port"] = 1  # and the schema would say so
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests["Service"], version, strict=True)


@pytest.mark.skipif(not KUSTOMIZE.exists(), reason="make interop installs Kustomize")
@pytest.mark.parametrize("folder", ["base", "overlays/example"])
def test_kustomize_builds_the_same(folder: str) -> None:
    command = [KUSTOMIZE, "build", KUBERNETES / folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    manifests = list(yaml.safe_load_all(done.stdout))
    assert {each["kind"]: each for each in manifests} == built(KUBERNETES / folder)
    assert len({each["kind"] for each in manifests}) == len(manifests)


def test_all_that_is_promised_is_there(manifests: Built, overlay: Built) -> None:
    assert manifests.keys() >= BASE and configuration(manifests)["roots"] == ("/skills",)
    assert overlay.keys() == BASE | {"Namespace", "Ingress", "HorizontalPodAutoscaler"}
    for folder in (KUBERNETES / "base", KUBERNETES / "overlays" / "example"):
        asked = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
        named = {*asked["resources"], *asked["configMapGenerator"][0]["files"], "kustomization.yaml"}
        assert {each.name for each in folder.iterdir()} <= named  # no file is forgotten


def test_they_are_about_the_same_pods(manifests: Built) -> None:
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [manifests[kind]["spec"]["selector"] for kind in ("Service", "Deployment", "PodDisruptionBudget")]
    assert labels == selectors[0] == selectors[1]["matchLabels"] == selectors[2]["matchLabels"]
    assert manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    pod, container = pod_of(manifests)
    ports = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in manifests["Service"]["spec"]["ports"]} == ports
    assert {each["port"] for rule in manifests["NetworkPolicy"]["spec"]["ingress"] for each in rule["ports"]} == ports
    volumes = {each["name"] for each in pod["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes


def test_the_pods_pass_the_restricted_standard_write_to_volumes_alone_and_name_no_secret(manifests: Built) -> None:
    pod, container = pod_of(manifests)
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == wanted
    kinds = {each["name"]: {*each} - {"name"} for each in pod["volumes"]}
    assert set().union(*kinds.values()) == {"persistentVolumeClaim", "configMap", "secret", "emptyDir"}
    written = {each["name"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert written == {name for name, kind in kinds.items() if kind == {"emptyDir"}}
    assert all(each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each)
    # No secret is written down.
    assert "Secret" not in manifests
    assert {each["name"] for each in container["env"] if "valueFrom" in each} == {"MCP_SKILLS_REDIS"}


def test_a_pod_has_the_time_to_drain_while_another_one_answers(manifests: Built) -> None:
    pod, container = pod_of(manifests)
    drain = int(next(each["value"] for each in container["env"] if each["name"] == "MCP_SKILLS_DRAIN"))
    wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert wait + drain + 2 < pod["terminationGracePeriodSeconds"]
    probe = container["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < drain
    paths = [container[key]["httpGet"]["path"] for key in ("livenessProbe", "readinessProbe", "startupProbe")]
    assert paths == ["/healthz", "/readyz", "/healthz"]
    # There are two at least, and one stays.
    spec, scaler = manifests["Deployment"]["spec"], manifests.get("HorizontalPodAutoscaler")
    assert (scaler["spec"]["minReplicas"] if scaler else spec["replicas"]) >= 2
    assert ("replicas" in spec) != (scaler is not None)  # one of them says how many
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert manifests["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_clients_come_by_tls_and_through_the_proxy_alone(overlay: Built) -> None:
    ingress, policy = overlay["Ingress"]["spec"], overlay["NetworkPolicy"]["spec"]
    hosts = [each["host"] for each in ingress["rules"]]
    assert [host for each in ingress["tls"] for host in each["hosts"]] == hosts
    backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
    (port,) = overlay["Service"]["spec"]["ports"]
    assert (backend["name"], backend["port"]["name"]) == (overlay["Service"]["metadata"]["name"], port["name"])
    assert all("namespaceSelector" in each for rule in policy["ingress"] for each in rule["from"])
    values = configuration(overlay)
    assert [*values["allowed_host"]] == hosts and values["trusted_proxy"]
    assert overlay["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_prometheus_comes_in_and_git_goes_out(manifests: Built) -> None:
    policy = manifests["NetworkPolicy"]["spec"]
    wanted = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    }
    assert [wanted] in [rule["from"] for rule in policy["ingress"]]
    (outside,) = (rule for rule in policy["egress"] if "ipBlock" in rule["to"][0])
    assert {each["port"] for each in outside["ports"]} == {443, 22}


def test_the_monitor_asks_where_the_service_answers_and_the_component_has_metrics_shown(manifests: Built) -> None:
    folder = KUBERNETES / "monitoring"
    component = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert component["kind"] == "Component"
    assert {each.name for each in folder.iterdir()} == {*component["resources"], "kustomization.yaml"}
    monitor = yaml.safe_load((folder / "servicemonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["endpoints"]
    service = manifests["Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    (patch,) = component["patches"]
    assert patch["target"]["name"] == manifests[patch["target"]["kind"]]["metadata"]["name"]
    (change,) = yaml.safe_load(patch["patch"])
    assert change["value"]["name"] in known()


@each_row("file", ["config.toml", "kubernetes/base/config.toml", "kubernetes/overlays/example/config.toml"])
def test_the_source_that_a_configuration_suggests_is_one(file: str) -> None:
    text = (ROOT / "deploy" / file).read_text()
    before, _, suggested = text.partition("# [[source]]\n")
    lines = "".join(line.removeprefix("# ") for line in suggested.splitlines(keepends=True))
    found = parse(f"{before}[[source]]\n{lines}".encode(), file)
    assert "git+https://git.example/acme/skills@main#skills" in found.values["roots"]
