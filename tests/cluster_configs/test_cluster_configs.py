"""Every file of cluster_configs is validated: launcher files by Ray, KubeRay by structure, run configs by ours."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster_configs.kuberay import faults
from zellige_ray.config import load_config
from zellige_ray.errors import ConfigError

ROOT = Path(__file__).parents[2]
HOME = ROOT / "cluster_configs"
LAUNCHER = sorted((HOME / "launcher").glob("*.yaml"))
KUBERAY = sorted((HOME / "kuberay").glob("*.yaml"))
TRAIN = sorted((HOME / "train").glob("*.yaml"))
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def validate(config: dict[str, Any]) -> dict[str, Any]:
    """Ray's own judgement, offline and without a cloud's SDK."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared: dict[str, Any] = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    return prepared


def test_no_file_is_left_out() -> None:
    assert {p.stem for p in LAUNCHER} == {"local", "aws", "gcp"}
    assert {p.stem for p in KUBERAY} == {"raycluster", "rayjob"}
    known = {*LAUNCHER, *KUBERAY, *TRAIN}
    assert {p for p in HOME.rglob("*.y*ml")} == known
    listed = set(re.findall(r"`([\w./]+\.yaml)`", (HOME / "README.md").read_text()))
    assert {str(p.relative_to(HOME)) for p in known} <= listed


@pytest.mark.parametrize("path", LAUNCHER, ids=lambda p: p.stem)
def test_ray_accepts_every_launcher_file(path: Path) -> None:
    prepared = validate(read(path))
    assert prepared["head_node_type"] in prepared["available_node_types"]


@pytest.mark.parametrize("path", LAUNCHER, ids=lambda p: p.stem)
@pytest.mark.parametrize("change", [{"max_worker": 3}, {"file_mount": {}}, {"idle_timeout_minutes": "five"}])
def test_a_typo_in_a_launcher_file_is_refused(path: Path, change: dict[str, Any]) -> None:
    from jsonschema import ValidationError

    with pytest.raises(ValidationError):
        validate(read(path) | change)


@pytest.mark.parametrize("name", ["aws", "gcp"])
def test_cloud_workers_have_bounds_gpus_and_spot_and_the_head_has_no_gpu(name: str) -> None:
    config = read(HOME / "launcher" / f"{name}.yaml")
    types = config["available_node_types"]
    head = types.pop(config["head_node_type"])
    assert head["resources"].get("GPU") == 0
    assert all(0 <= t["min_workers"] <= t["max_workers"] and t["resources"]["GPU"] > 0 for t in types.values())
    assert sum(t["max_workers"] for t in types.values()) <= config["max_workers"]
    assert any(t["min_workers"] > 0 for t in types.values())
    spot = [t["node_config"] for t in types.values() if re.search("spot", str(t["node_config"]), flags=re.IGNORECASE)]
    assert len(spot) == 1


@pytest.mark.parametrize("path", [*LAUNCHER, *KUBERAY, HOME / "Dockerfile"], ids=lambda p: p.name)
def test_releases_are_those_of_the_constraints(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"rayproject/ray:([\d.]+)-", text) + re.findall(r"rayVersion: \"(.+)\"", text)) <= {
        PINS["ray"]
    }
    assert set(re.findall(r"zellige:([\d.]+)", text)) <= {_version()}
    assert "RAY_AUTH_MODE" in text or path.name == "Dockerfile"


def _version() -> str:
    import zellige_ray

    return zellige_ray.__version__


@pytest.mark.parametrize("path", KUBERAY, ids=lambda p: p.stem)
def test_kuberay_manifests_hold(path: Path) -> None:
    assert faults(read(path)) == []


def cluster_of(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]
    return spec.get("rayClusterSpec", spec)


def rename(of: Callable[[dict[str, Any]], dict[str, Any]], old: str, new: str) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: of(manifest).__setitem__(new, of(manifest).pop(old))


def worker(manifest: dict[str, Any]) -> dict[str, Any]:
    group: dict[str, Any] = cluster_of(manifest)["workerGroupSpecs"][0]
    return group


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = worker(manifest)["template"]["spec"]
    return spec


@pytest.mark.parametrize("path", KUBERAY, ids=lambda p: p.stem)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (rename(cluster_of, "workerGroupSpecs", "workerGroupSpec"), "nearest known one is workerGroupSpecs"),
        (rename(cluster_of, "enableInTreeAutoscaling", "enableInTreeAutoscaler"), "is enableInTreeAutoscaling"),
        (rename(cluster_of, "headGroupSpec", "headGroup"), "headGroupSpec is missing"),
        (rename(worker, "maxReplicas", "maxReplica"), "nearest known one is maxReplicas"),
        (rename(worker, "rayStartParams", "rayStartParam"), "nearest known one is rayStartParams"),
        (rename(pod, "containers", "container"), "nearest known one is containers"),
        (lambda m: worker(m).update(replicas="2"), "expected int, got '2'"),
        (lambda m: worker(m).update(minReplicas=3), "minReplicas 3, replicas 2, maxReplicas 8 do not ascend"),
        (lambda m: worker(m)["rayStartParams"].update({"num-cpus": 4}), "expected str, got 4"),
        (lambda m: pod(m)["volumes"].pop(1), "'shared', which is no volume"),
        (lambda m: pod(m)["volumes"][0].update(emptyDir={}), "gpu: /dev/shm is not mounted"),
        (lambda m: pod(m)["containers"][0]["resources"]["limits"].pop("nvidia.com/gpu"), "no container has a limit"),
        (lambda m: cluster_of(m)["headGroupSpec"]["rayStartParams"].pop("num-cpus"), "no worker is placed there"),
        (lambda m: cluster_of(m).update(enableInTreeAutoscaling=False), "enableInTreeAutoscaling is off"),
        (lambda m: m.update(apiVersion="ray.io/v1beta1"), "is not ray.io/v1"),
        (lambda m: m.update(kind="RayClusters"), "none of ['RayCluster', 'RayJob']"),
    ],
)
def test_common_typos_in_a_manifest_are_caught(path: Path, spoil: Any, message: str) -> None:
    manifest = read(path)
    spoil(manifest)
    found = faults(manifest)
    assert any(message in fault for fault in found), found


def test_the_job_retries_from_its_newest_checkpoint_with_an_entrypoint_that_is_a_command() -> None:
    spec = read(HOME / "kuberay" / "rayjob.yaml")["spec"]
    assert spec["backoffLimit"] > 0 < spec["submitterConfig"]["backoffLimit"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert "complete.json" in spec["entrypoint"]
    assert "resume=/shared/runs/latest" in spec["entrypoint"]
    (config,) = re.findall(r"train (\S+\.yaml)", spec["entrypoint"])
    overrides = re.findall(r"(\S+=/shared\S*)", spec["entrypoint"].split(config)[1])
    assert load_config(ROOT / config, overrides).folder == "/shared/runs"


@pytest.mark.parametrize("shape", ["no run yet", "no checkpoint yet", "checkpoint"])
def test_the_entrypoint_of_the_job_resumes_only_what_is_complete(shape: str, tmp_path: Path) -> None:
    import subprocess

    run = tmp_path / "runs" / "latest"
    if shape != "no run yet":
        (run / "checkpoints" / "step-00000004").mkdir(parents=True)
    if shape == "checkpoint":
        (run / "checkpoints" / "step-00000004" / "complete.json").write_text("{}")
    entrypoint = read(HOME / "kuberay" / "rayjob.yaml")["spec"]["entrypoint"]
    entrypoint = entrypoint.replace("/shared", str(tmp_path)).replace("exec python", "echo python")
    done = subprocess.run(entrypoint, shell=True, capture_output=True, text=True, timeout=30, check=True)
    assert ("resume=" in done.stdout) == (shape == "checkpoint")
    assert done.stdout.startswith("python -m zellige_ray train cluster_configs/train/spot.yaml folder=")


@pytest.mark.parametrize("path", TRAIN, ids=lambda p: p.stem)
def test_run_configs_load_and_name_known_models_and_policies(path: Path) -> None:
    from zellige_ray.models.specs import get_spec
    from zellige_ray.placement import get_policy

    config = load_config(path)
    get_spec(config.model.name)
    get_policy(config.placement.policy)


def test_a_typo_in_a_run_config_names_the_nearest_key(tmp_path: Path) -> None:
    path = tmp_path / "spot.yaml"
    path.write_text((HOME / "train" / "spot.yaml").read_text().replace("wait_timeout_s", "wait_timeouts"))
    with pytest.raises(
        ConfigError, match=r"workers.wait_timeouts: unknown key, the nearest known one is wait_timeout_s"
    ):
        load_config(path)
