"""A newcomer gets moments of 8 bits from a peer, bit for bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.actors.local_pool import LocalPool
from tests.actors.test_invariance import curve, make_config, parameters, train, worst
from tests.actors.tiny_data import write_cache
from zellige_ray.monitor.events import MembershipEvent

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"),
]


def test_a_worker_that_joins_takes_the_moments_of_a_peer(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    cache, runs = write_cache(tmp_path / "cache"), []
    settings: dict[str, Any] = {
        "steps": 10,
        "model": {"name": "dit", "layers": 1, "heads": 3, "head_dim": 12},
        "placement": {"hardware": "cpu"},
        "optimizer": {"name": "adamw8bit", "lr": 0.01},
    }

    def kill(worker: str, method: str, nth: int) -> bool:
        return method == "step" and (worker, nth) == ("worker-1", 4)

    config = make_config(cache, 3, **settings)
    for name, given, spares in (("whole", None, 0), ("broken", kill, 1)):
        (tmp_path / name).mkdir()
        pool = LocalPool(config, str(cache.folder), *([given] if given else []), spares=spares)
        events, summary = train(tmp_path / name, cache, config, pool)
        assert (summary["samples_lost"], summary["samples_doubled"]) == (0, 0)
        runs.append((curve(events), events, pool))
    assert worst(runs[1][0], runs[0][0]) <= 1e-10
    assert [e.change for e in runs[1][1] if isinstance(e, MembershipEvent)] == ["left", "joined"]
    pool = runs[1][2]
    assert torch.equal(parameters(pool, "worker-0"), parameters(pool, "worker-3"))
    old, new = (pool.workers[name]._state.whole() for name in ("worker-0", "worker-3"))
    assert old.keys() == new.keys()
    assert any(kinds["state1"].dtype == torch.uint8 and kinds["state1"].unique().numel() > 9 for kinds in old.values())
    assert all(torch.equal(old[name][kind], new[name][kind]) for name in old for kind in old[name])
