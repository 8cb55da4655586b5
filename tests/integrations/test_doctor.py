"""The doctor: every illness on a healthy machine, as values; and one real look."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zellige_ray.commands import doctor
from zellige_ray.commands.doctor_checks import GIB, Found, Gpu, Page, checks, examine
from zellige_ray.config import PageConfig
from zellige_ray.monitor.page.server import listen

ROOT = Path(__file__).parents[2]
WELL = Found(
    python=(3, 11, 7),
    versions={"ray": "2.60.0", "torch": "2.13.0+cpu", "diffusers": "0.42.1"},
    hostname="node-1",
    resolved=("10.0.0.5",),
    routable="10.0.0.5",
    ports_taken=(),
    shm_bytes=16 * GIB,
    disk_free_bytes=500 * GIB,
    folder="runs",
    gpus=(Gpu("H200", 141 * GIB, 140 * GIB), Gpu("H200", 141 * GIB, 140 * GIB)),
    round_trip_s={"gloo": 0.0004, "nccl": 0.0001},
    environment={"RAY_AUTH_MODE": "disabled"},
)


def test_a_healthy_machine_is_ok_in_every_line() -> None:
    lines = examine(WELL)
    assert [line.check for line in lines] == list(checks)
    assert {line.state for line in lines} == {"ok"}
    assert not any(line.mend for line in lines)


@pytest.mark.parametrize(
    ("ill", "check", "state", "says", "mend"),
    [
        ({"python": (3, 10, 2)}, "python", "failure", "3.10.2", "3.11 or newer"),
        ({"versions": {**WELL.versions, "ray": None}}, "versions", "failure", "ray absent", "install ray"),
        ({"versions": {**WELL.versions, "ray": "2.55.1"}}, "versions", "failure", "ray 2.55.1", "needs 2.57"),
        ({"resolved": ()}, "address", "failure", "node-1 is unknown", "/etc/hosts"),
        ({"resolved": ("127.0.1.1",)}, "address", "warning", "node-1 is 127.0.1.1", "--node-ip-address"),
        ({"resolved": ("::1", "127.0.0.1")}, "address", "warning", "::1", "loopback"),
        ({"routable": None}, "address", "warning", "way out is none", "only this machine"),
        ({"ports_taken": (6379, 8265)}, "ports", "warning", "8265 (Ray's dashboard and jobs)", "--dashboard-port"),
        ({"page": Page("127.0.0.1", 8270, 8271)}, "page", "warning", "port 8270 is in use", "would take 8271"),
        ({"page": Page("10.9.9.9", 8270, "no such address")}, "page", "warning", "no such address", "set page.host"),
        ({"shm_bytes": 64 << 20}, "shared memory", "failure", "64 MiB", "--shm-size"),
        ({"shm_bytes": GIB}, "shared memory", "warning", "1.0 GiB", "emptyDir"),
        ({"shm_bytes": None}, "shared memory", "failure", "no /dev/shm", "tmpfs"),
        ({"disk_free_bytes": 10 << 20}, "disk", "failure", "10 MiB free", "16 bytes per parameter"),
        ({"disk_free_bytes": 5 * GIB}, "disk", "warning", "5.0 GiB free", "checkpoint.keep"),
        ({"disk_free_bytes": None}, "disk", "failure", "can't be read", "set folder"),
        ({"gpus": (Gpu("A100", 80 * GIB, 20 * GIB),)}, "GPUs", "warning", "20.0 GiB free of 80.0", "CUDA_VISIBLE"),
        ({"round_trip_s": {"gloo": "CommError: no route"}}, "round trip", "failure", "no route", "GLOO_SOCKET_IFNAME"),
        ({"round_trip_s": {"gloo": 1.5}}, "round trip", "warning", "1500.0 ms", "overloaded"),
        ({"round_trip_s": {}}, "round trip", "failure", "no backend", "GLOO_SOCKET_IFNAME"),
        ({"environment": {}}, "Ray authentication", "warning", "is not set", "export RAY_AUTH_MODE"),
        ({"environment": {}, "token_file": True}, "Ray authentication", "warning", "token file", "both sides"),
        ({"environment": {"RAY_AUTH_MODE": "token"}}, "Ray authentication", "failure", "without a token", "TOKEN_PATH"),
        ({"environment": {"RAY_AUTH_MODE": "maybe"}}, "Ray authentication", "failure", "maybe", "token or disabled"),
        (
            {"environment": {**WELL.environment, "RAY_ADDRESS": "h:6379"}, "unreachable": "refused"},
            "cluster", "failure", "h:6379: refused", "is the head running",
        ),
    ],
)  # fmt: skip
def test_an_illness_is_found_alone_and_has_its_mend(
    ill: dict[str, Any], check: str, state: str, says: str, mend: str
) -> None:
    sick = [line for line in examine(replace(WELL, **ill)) if line.state != "ok"]
    assert [(line.check, line.state) for line in sick] == [(check, state)]
    assert says in sick[0].found
    assert mend in sick[0].mend


@pytest.mark.parametrize(("changes", "code"), [({}, 0), ({"ports_taken": (6379,)}, 0), ({"shm_bytes": None}, 1)])
@pytest.mark.parametrize("as_json", [True, False])
def test_only_a_failure_makes_the_exit_code_1(
    changes: dict[str, Any], code: int, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    import argparse

    from zellige_ray.commands import doctor_probes

    monkeypatch.setattr(doctor_probes, "look", lambda folder, page: replace(WELL, **changes))
    assert doctor.run(argparse.Namespace(folder="runs", config=None, json=as_json)) == code
    said = capsys.readouterr().out
    if as_json:
        value = json.loads(said)
        assert value["ok"] == (code == 0)
        assert {"check", "state", "found", "mend"} == set(value["lines"][0])
    else:
        assert ("->" in said) == bool(changes)


def test_the_page_of_the_config_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import argparse

    from zellige_ray.commands import doctor_probes

    with listen("127.0.0.1", 0) as other:
        port = int(other.getsockname()[1])
        found = doctor_probes._page(PageConfig(port=port))
    assert found.port == port and isinstance(found.free, int) and found.free > port
    assert isinstance(doctor_probes._page(PageConfig(host="203.0.113.9")).free, str)
    assert doctor_probes._page(PageConfig(enabled=False)).host == ""
    seen: list[Any] = []
    monkeypatch.setattr(doctor_probes, "look", lambda folder, page: seen.append((folder, page)) or WELL)
    (tmp_path / "my.yaml").write_text(
        "folder: elsewhere\npage: {port: 9001}\ndata: {source: mini}\nbatch: {samples: 2}\n"
    )
    doctor.run(argparse.Namespace(folder=None, config=str(tmp_path / "my.yaml"), json=True))
    assert seen == [(Path("elsewhere"), PageConfig(port=9001))]


def test_tokens_and_addresses_are_never_repeated_by_a_real_look(tmp_path: Path) -> None:
    import os

    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret-word", "PYTHONPATH": str(ROOT)}
    environment["RAY_ADDRESS"] = "127.0.0.1:1"
    done = subprocess.run(
        [sys.executable, "-m", "zellige_ray", "doctor", str(tmp_path / "runs"), "--json"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    lines = {line["check"]: line for line in json.loads(done.stdout)["lines"]}
    assert done.returncode == 1, "nobody listens at port 1"
    assert lines["cluster"]["state"] == "failure"
    assert lines["round trip"]["state"] in ("ok", "warning"), lines["round trip"]
    assert lines["Ray authentication"]["state"] == "ok"
    assert "secret-word" not in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists(), "looking writes nothing"
