"""Ray Train's elastic mode under the events of `zellige bench recovery`: same model, batch, data and machine.

Data parallel by DDP over gloo, as its users write it: samples over ranks, a checkpoint of model and optimizer every
CHECKPOINT_EVERY steps, and a restart of the worker group from the newest one when something breaks. Stall: from the
blow to the start of the first step after it; steps that are run again from the checkpoint are counted apart. A frozen
worker is left out: Ray Train gives it up after 600 s by default. Ray's own settings are the defaults, but for a look at
the cluster every 2 s instead of 60 s, which is in its favour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

WORKERS = 3
CHECKPOINT_EVERY = 5
WAIT_S = 240.0


def train_fn(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from ray.train import Checkpoint
    from ray.train.torch import prepare_model

    from zellige_ray.attention.engine import AttentionEngine
    from zellige_ray.attention.layout import compile_layout
    from zellige_ray.config import parse_config
    from zellige_ray.data.cache import LatentCache
    from zellige_ray.data.sampler import Sampler, SamplerState
    from zellige_ray.models.registry import get_adapter
    from zellige_ray.models.specs import get_spec
    from zellige_ray.placement import Cluster, CostModel, load_hardware, make_plan
    from zellige_ray.placement import Sequence as Lengths
    from zellige_ray.training.batch import Loader
    from zellige_ray.training.loss import flow_matching_loss

    settings = parse_config(config["settings"])
    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    cache = LatentCache(Path(settings.data.source))
    spec, adapter = get_spec("dit"), get_adapter("dit")
    device = torch.device("cpu")
    module = adapter.build(settings.model, cache.text_dim, settings.seed, torch.float32, device)
    bound = adapter.bind(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=settings.optimizer.lr)
    loader = Loader(cache, cache.text_dim, adapter, spec, settings.loss, settings.seed, torch.float32, device)
    index, _ = cache.index().split(settings.data.held_out, settings.seed)
    sampler = Sampler(index, settings.batch, settings.seed, lambda s: spec.tokens(s.latent_shape))
    cost = CostModel(load_hardware("cpu"), spec.preset(settings.model, 4))
    alone = Cluster.uniform(1, 1, 1 << 40)
    step, position = 0, SamplerState()
    found = ray.train.get_checkpoint()
    if found is not None:
        with found.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt", weights_only=False)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, position = saved["step"], SamplerState.from_json(saved["position"])
    parallel = prepare_model(make_share(bound), parallel_strategy_kwargs={"find_unused_parameters": True})
    log = Path(config["log"])
    while not Path(config["stop"]).exists():
        samples, position = sampler.batch(position)
        mine = samples[rank::size] or samples[:1]
        start = time.time()
        plan = make_plan([Lengths(s.id, spec.tokens(s.latent_shape), s.text_tokens) for s in mine], alone, cost)
        weights = loader.weights(samples)
        optimizer.zero_grad()
        (round_,) = plan.rounds
        by_id = {s.id: s for s in mine}
        layout = compile_layout(round_, 0, settings.model.heads)
        share = loader.share(layout, [by_id[i] for i in round_.ids], position.pass_, weights)
        prediction = parallel(share.packed, AttentionEngine(layout, None))
        loss = flow_matching_loss(prediction, share.target_TCphw, share.weight_T)
        (loss * size).backward()
        optimizer.step()
        step += 1
        if rank == 0:
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "started": start, "ended": time.time(), "size": size}) + "\n")
        (Path(config["pids"]) / f"{rank}").write_text(f"{os.getpid()} {context.get_world_size()}", encoding="utf-8")
        checkpoint = None
        with tempfile.TemporaryDirectory() as folder:
            if step % CHECKPOINT_EVERY == 0:
                if rank == 0:
                    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save({**state, "position": position.to_json()}, Path(folder) / "state.pt")
                    checkpoint = Checkpoint.from_directory(folder)
                ray.train.report({"step": step}, checkpoint=checkpoint)


def make_share(bound: Any) -> Any:
    """A bound model as a module, which DDP asks for; the class is made where torch is."""
    import torch

    class Share(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module_ = bound.module

        def forward(self, packed: Any, engine: Any) -> Any:
            return bound(packed, engine)

    return Share()


class Watch:
    """What the training's own log says."""

    def __init__(self, folder: Path) -> None:
        self.log, self.pids, self.stop = folder / "log.jsonl", folder / "pids", folder / "stop"
        self.pids.mkdir()

    def rows(self) -> list[dict[str, Any]]:
        text = self.log.read_text(encoding="utf-8") if self.log.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for(self, size: int, since: float, steps: int = 3) -> None:
        end = time.monotonic() + WAIT_S
        while sum(r["size"] == size and r["started"] > since for r in self.rows()) < steps:
            if time.monotonic() > end:
                raise TimeoutError(f"no {steps} steps with {size} workers within {WAIT_S:.0f} s")
            time.sleep(0.05)

    def stall_s(self, moment: float, size: int | None = None) -> float:
        return min(r["started"] for r in self.rows() if r["started"] > moment and size in (None, r["size"])) - moment

    def longest_gap_s(self, since: float) -> float:
        """Between the end of a step and the start of the next, after a node came."""
        rows = [r for r in self.rows() if r["ended"] > since]
        return max((b["started"] - a["ended"] for a, b in itertools.pairwise(rows)), default=0.0)

    def pid_of(self, rank: int) -> int:
        return int((self.pids / f"{rank}").read_text(encoding="utf-8").split()[0])


def fit(settings: dict[str, Any], watch: Watch, storage: Path) -> threading.Thread:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        train_fn,
        train_loop_config={
            "settings": settings, "log": str(watch.log), "pids": str(watch.pids), "stop": str(watch.stop),
        },
        scaling_config=ScalingConfig(
            num_workers=(1, WORKERS), elastic_resize_monitor_interval_s=2.0, resources_per_worker={"CPU": 1}
        ),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=str(storage), failure_config=FailureConfig(max_failures=-1)),
    )  # fmt: skip
    thread = threading.Thread(target=trainer.fit, daemon=True)
    thread.start()
    return thread


def measure(folder: Path, scale: int, events: int) -> dict[str, Any]:
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    import ray

    from zellige_ray.actors.chaos import Field
    from zellige_ray.actors.chaos_data import write_random_latents
    from zellige_ray.commands.bench_recovery import settings

    write_random_latents(folder / "latents", 48, scale)
    watch, field = Watch(folder), Field()
    rows: list[dict[str, Any]] = []
    try:
        ray.init(address=field.address, log_to_driver=False)
        for _ in range(WORKERS):
            field.add_node()
        thread = fit(settings(folder), watch, folder / "storage")
        watch.wait_for(WORKERS, 0.0)
        for _ in range(events):
            blow(rows, watch, "worker_kill", lambda: os.kill(watch.pid_of(1), signal.SIGKILL))
            watch.wait_for(WORKERS, rows[-1]["at"])
            blow(rows, watch, "node_remove", lambda: field.remove_node(field.nodes[-1], graceful=True))
            watch.wait_for(WORKERS - 1, rows[-1]["at"])
            moment = time.time()
            field.add_node()
            watch.wait_for(WORKERS, moment)
            rows.append({"kind": "join", "at": moment, "stall_s": watch.longest_gap_s(moment)})
        watch.stop.touch()
        thread.join(30)
        ray.shutdown()
    finally:
        field.close()
    steps = watch.rows()
    kinds = dict.fromkeys(r["kind"] for r in rows)
    return {
        "events": [{"kind": r["kind"], "stall_s": r["stall_s"], "survivor_pids_kept": False} for r in rows],
        "median_stall_s": {k: statistics.median(r["stall_s"] for r in rows if r["kind"] == k) for k in kinds},
        "step_s": statistics.median(r["ended"] - r["started"] for r in steps),
        "steps_run_again": len(steps) - len({r["step"] for r in steps}),
    }


def blow(rows: list[dict[str, Any]], watch: Watch, kind: str, act: Any) -> None:
    moment = time.time()
    act()
    end = time.monotonic() + WAIT_S
    while not any(r["started"] > moment + 1.0 for r in watch.rows()):  # a step of before may still be under way
        if time.monotonic() > end:
            raise TimeoutError(f"no step within {WAIT_S:.0f} s of {kind}")
        time.sleep(0.05)
    rows.append({"kind": kind, "at": moment, "stall_s": watch.stall_s(moment + 0.2) + 0.2})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--scale", type=int, default=2)
    parser.add_argument("--events", type=int, default=1, help="events of each kind; one takes about two minutes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ray-train-recovery-") as name:
        figures = measure(Path(name), args.scale, args.events)
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
