"""A structural check of KubeRay manifests: keys that exist, numbers that are numbers, mounts that have a volume.

The real CRD (1.4 MB) is on no package index, so the parts that our files use are written down here, closed to other
keys: a typo that Kubernetes would drop in silence is an error.
"""

from __future__ import annotations

import difflib
from typing import Any, NamedTuple


class Many(NamedTuple):
    """A list of such elements."""

    of: Any


class Free(NamedTuple):
    """A mapping with keys of one's own."""

    of: Any


QUANTITIES = Free(str)
CONTAINER = {
    "name": str, "image": str, "imagePullPolicy": str, "command": Many(str), "args": Many(str),
    "env": Many({"name": str, "value": str}), "ports": Many({"containerPort": int, "name": str}),
    "resources": {"requests": QUANTITIES, "limits": QUANTITIES},
    "volumeMounts": Many({"name": str, "mountPath": str, "readOnly": bool}),
}  # fmt: skip
VOLUME = {
    "name": str, "emptyDir": {"medium": str, "sizeLimit": str}, "persistentVolumeClaim": {"claimName": str},
    "configMap": {"name": str},
}  # fmt: skip
POD = {
    "metadata": {"labels": Free(str), "annotations": Free(str)},
    "spec": {
        "containers": Many(CONTAINER), "volumes": Many(VOLUME), "nodeSelector": Free(str), "serviceAccountName": str,
        "tolerations": Many({"key": str, "operator": str, "effect": str, "value": str}),
        "terminationGracePeriodSeconds": int,
    },
}  # fmt: skip
CLUSTER = {
    "rayVersion": str, "enableInTreeAutoscaling": bool, "authOptions": {"mode": str},
    "autoscalerOptions": {"upscalingMode": str, "idleTimeoutSeconds": int, "version": str},
    "headGroupSpec": {"rayStartParams": Free(str), "template": POD, "serviceType": str},
    "workerGroupSpecs": Many({
        "groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, "numOfHosts": int,
        "idleTimeoutSeconds": int, "rayStartParams": Free(str), "template": POD,
    }),
}  # fmt: skip
JOB = {
    "entrypoint": str, "submissionMode": str, "backoffLimit": int, "submitterConfig": {"backoffLimit": int},
    "shutdownAfterJobFinishes": bool, "ttlSecondsAfterFinished": int, "activeDeadlineSeconds": int,
    "runtimeEnvYAML": str, "rayClusterSpec": CLUSTER, "suspend": bool,
}  # fmt: skip
REQUIRED = {
    "containers", "groupName", "headGroupSpec", "image", "minReplicas", "maxReplicas", "name", "rayClusterSpec",
    "rayVersion", "template", "workerGroupSpecs", "mountPath", "entrypoint", "rayStartParams",
}  # fmt: skip
KINDS = {"RayCluster": CLUSTER, "RayJob": JOB}


def faults(manifest: dict[str, Any]) -> list[str]:
    """Everything that is wrong with a manifest, each with its path."""
    kind = manifest.get("kind")
    if kind not in KINDS:
        return [f"kind: {kind!r} is none of {sorted(KINDS)}"]
    whole = {"apiVersion": str, "kind": str, "metadata": {"name": str, "namespace": str}, "spec": KINDS[kind]}
    found = _structure(manifest, whole, "")
    if manifest.get("apiVersion") != "ray.io/v1":
        found.append(f"apiVersion: {manifest.get('apiVersion')!r} is not ray.io/v1")
    if found:
        return found
    spec = manifest["spec"]
    return _sense(spec if kind == "RayCluster" else spec["rayClusterSpec"])


def _structure(value: Any, shape: Any, path: str) -> list[str]:
    if isinstance(shape, Many):
        if not isinstance(value, list):
            return [f"{path}: expected a list, got {value!r}"]
        return [fault for i, x in enumerate(value) for fault in _structure(x, shape.of, f"{path}[{i}]")]
    if isinstance(shape, type):
        right = isinstance(value, shape) and not (shape is int and isinstance(value, bool))
        return [] if right else [f"{path}: expected {shape.__name__}, got {value!r}"]
    if not isinstance(value, dict):
        return [f"{path}: expected a mapping, got {value!r}"]
    if isinstance(shape, Free):
        return [fault for k, x in value.items() for fault in _structure(x, shape.of, f"{path}.{k}")]
    out = []
    for key, x in value.items():
        if key in shape:
            out += _structure(x, shape[key], f"{path}.{key}")
        else:
            near = difflib.get_close_matches(key, shape, n=1, cutoff=0.0)[0]
            out.append(f"{path}.{key}: unknown key, the nearest known one is {near}")
    missing = sorted(REQUIRED & set(shape) - set(value))
    return out + [f"{path}: {key} is missing" for key in missing]


def _sense(cluster: dict[str, Any]) -> list[str]:
    head, workers = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    out = []
    for name, group in [("head", head), *((w["groupName"], w) for w in workers)]:
        out += _pod(name, group["template"]["spec"])
    if any(_gpus(c) for c in head["template"]["spec"]["containers"]):
        out.append("head: it asks for GPUs; it only holds the driver")
    if head["rayStartParams"].get("num-cpus") != "0":
        out.append('head: rayStartParams.num-cpus must be "0", so that no worker is placed there')
    for w in workers:
        low, start, high = w["minReplicas"], w.get("replicas", w["minReplicas"]), w["maxReplicas"]
        if not low <= start <= high:
            out.append(f"{w['groupName']}: minReplicas {low}, replicas {start}, maxReplicas {high} do not ascend")
        if low != high and not cluster.get("enableInTreeAutoscaling"):
            out.append(f"{w['groupName']}: {low} to {high} replicas, but enableInTreeAutoscaling is off")
        if not any(_gpus(c) for c in w["template"]["spec"]["containers"]):
            out.append(f"{w['groupName']}: no container has a limit of nvidia.com/gpu")
    return out


def _pod(name: str, spec: dict[str, Any]) -> list[str]:
    volumes, out = {v["name"]: v for v in spec.get("volumes", [])}, []
    for container in spec["containers"]:
        mounts = {m["mountPath"]: m["name"] for m in container.get("volumeMounts", [])}
        out += [f"{name}: {at} mounts {v!r}, which is no volume" for at, v in mounts.items() if v not in volumes]
        shm = volumes.get(mounts.get("/dev/shm", ""), {})
        if shm.get("emptyDir", {}).get("medium") != "Memory":
            out.append(f"{name}: /dev/shm is not mounted from an emptyDir of medium Memory")
        modes = {e["value"] for e in container.get("env", []) if e["name"] == "RAY_AUTH_MODE"}
        if len(modes) != 1:
            out.append(f"{name}: RAY_AUTH_MODE is not set, so Ray decides by what it finds")
    return out


def _gpus(container: dict[str, Any]) -> int:
    return int(container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
