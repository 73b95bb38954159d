"""Files for Ray clusters: valid by the schemas of those who read them, and as confined as the docs say."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RAY = ROOT / "deploy" / "ray"


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    """The objects of the manifest, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((RAY / "raycluster.yaml").read_text())}


@pytest.fixture(scope="module")
def launcher() -> dict[str, Any]:
    """What Ray's cluster launcher reads."""
    loaded: dict[str, Any] = yaml.safe_load((RAY / "cluster.yaml").read_text())
    return loaded


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_no_pod_has_more_rights_than_it_needs(objects: dict[str, dict[str, Any]]) -> None:
    for pod in pods(objects["RayCluster"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert not {"hostNetwork", "hostPID", "hostIPC"} & {*pod}
        assert not any("hostPath" in volume for volume in pod.get("volumes", ()))
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in container["securityContext"]
            assert "memory" in container["resources"]["limits"]


def test_sessions_get_the_native_sandbox(objects: dict[str, dict[str, Any]]) -> None:
    (pod,) = pods(objects["RayCluster"])[1:]
    (container,) = pod["containers"]
    assert pod["hostUsers"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "Localhost", "localhostProfile": "cellblock.json"}
    assert container["securityContext"]["procMount"] == "Unmasked"
    assert {"name": "CELLBLOCK_ISOLATE", "value": "native"} in container["env"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_nobody_reaches_the_cluster_without_a_token(objects: dict[str, dict[str, Any]], launcher: dict[str, Any]) -> None:
    cluster, policy = objects["RayCluster"], objects["NetworkPolicy"]
    assert cluster["spec"]["authOptions"] == {"mode": "token"}
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert {one["metadata"].get("namespace") for one in (cluster, policy)} == {objects["Namespace"]["metadata"]["name"]}
    assert "--env=RAY_AUTH_MODE=token" in launcher["docker"]["run_options"]


def test_the_head_runs_no_sessions(objects: dict[str, dict[str, Any]], launcher: dict[str, Any]) -> None:
    assert objects["RayCluster"]["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert "--num-cpus=0" in launcher["head_start_ray_commands"][-1]


def test_containers_of_the_launcher_are_confined_as_those_of_compose(launcher: dict[str, Any]) -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["x-image"]
    asked = {option.removeprefix("--security-opt=").rpartition("/")[2] for option in launcher["docker"]["run_options"]}
    wanted = {option.removeprefix("seccomp=") for option in compose["security_opt"]}
    assert wanted <= asked
    assert "--cap-drop=ALL" in launcher["docker"]["run_options"]


def test_all_files_name_one_release_of_ray(objects: dict[str, dict[str, Any]]) -> None:
    (in_image,) = re.findall(r"^ARG RAY=(.+)$", (RAY / "Dockerfile").read_text(), re.MULTILINE)
    assert objects["RayCluster"]["spec"]["rayVersion"] == in_image
    images = {container["image"] for pod in pods(objects["RayCluster"]) for container in pod["containers"]}
    assert images == {"cellblock-ray"}


def test_the_launchers_file_fits_the_schema_of_ray(launcher: dict[str, Any]) -> None:
    import jsonschema  # here, as it takes two seconds, in each process that collects

    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        pytest.skip("Ray is not installed")
    schema = json.loads((Path(found.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(launcher, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**launcher, "workers": 1}, schema)


def test_the_manifest_fits_the_schema_of_kuberay(objects: dict[str, dict[str, Any]]) -> None:
    import jsonschema  # here, as it takes two seconds, in each process that collects

    path = os.environ.get("KUBERAY_CRD")
    if not path:
        pytest.skip("KUBERAY_CRD does not name KubeRay's ray-operator/config/crd/bases/ray.io_rayclusters.yaml")
    definition = yaml.load(Path(path).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    versions = {one["name"]: one["schema"]["openAPIV3Schema"] for one in definition["spec"]["versions"]}
    cluster = objects["RayCluster"]
    schema = closed(versions[cluster["apiVersion"].partition("/")[2]])
    jsonschema.validate(cluster, schema)
    cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["hostUser"] = False
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster, schema)


def closed(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, which Kubernetes would drop."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(value) for name, value in schema.items() if name != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if schema.get("type") == "object" and schema.get("properties") and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made
