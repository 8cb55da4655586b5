"""What the tests of memory share: ranks as threads with real runners on random samples, and their counted peaks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from zellige_ray.attention.comm import Comm
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.attention.tilings import random_round
from zellige_ray.config import EngineConfig, LossConfig, ModelConfig, OptimizerConfig
from zellige_ray.data.cache import FORMAT, SETTINGS, Entry, LatentCache, write_entry, write_listing
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.registry import get_adapter
from zellige_ray.models.specs import get_spec
from zellige_ray.placement import Cluster, CostModel, Plan, load_hardware, make_plan, simulate
from zellige_ray.placement import Sequence as Lengths
from zellige_ray.placement.memory import MemoryModel
from zellige_ray.training.batch import Loader
from zellige_ray.training.runner import Runner
from zellige_ray.training.state import TrainState
from zellige_ray.training.weigh import peak_of_step, weigh

TEXT_DIM, PLENTY = 32, 1 << 40
DEVICE, DTYPE = torch.device("cpu"), torch.float32


def write_samples(folder: Path, count: int, most: int, seed: int) -> LatentCache:
    """Images, and every third one a clip; sides up to `most` tokens."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    strides = {"latent_channels": 16, "temporal_stride": 4, "spatial_stride": 8}
    settings = {"format": FORMAT, "codec": "random", "text_dim": TEXT_DIM, **strides}
    (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    entries = []
    for i in range(count):
        frames = int(rng.integers(2, 8)) if i % 3 == 0 else 1
        height, width = (2 * int(n) for n in rng.integers(2, most, 2))
        words = int(rng.integers(0, 40))
        entry = Entry(
            id=f"s{i}", media="video" if frames > 1 else "image", latent_shape=(16, frames, height, width),
            text_tokens=words, weight=1.0, file=f"s{i}.safetensors", source="random", source_width=8 * width,
            source_height=8 * height, source_frames=4 * frames - 3, more=False, width=8 * width, height=8 * height,
            frames=4 * frames - 3, caption=" ".join(["word"] * words), caption_tokens=words, scaled=False,
        )  # fmt: skip
        latents = rng.standard_normal((16, frames, height, width)).astype(np.float32)
        write_entry(folder, entry, latents, rng.standard_normal((words, TEXT_DIM)).astype(np.float32))
        entries.append(entry)
    write_listing(folder, entries)
    return LatentCache(folder)


class Weighing:
    """Ranks of one model, and its memory model, weighed on the first; where the state is sharded, by all together."""

    def __init__(
        self, cache: LatentCache, model: ModelConfig, layout: str = "replicated", nodes: tuple[int, ...] = (0, 0)
    ) -> None:
        self.model, self.spec, self.samples = model, get_spec(model.name), cache.index().samples
        self.cache, self.nodes = cache, nodes
        self.runners = [self._runner(cache, layout) for _ in nodes]

        def settle_and_weigh(rank: int, comm: Comm) -> MemoryModel:
            runner = self.runners[rank]
            assert runner.state.settle(comm, nodes, 0) == 0
            return weigh(runner, model, comm)

        sharded = layout != "replicated"
        self.memory = run_ranks(len(nodes), settle_and_weigh)[0] if sharded else weigh(self.runners[0], model)
        preset = self.spec.preset(model, DTYPE.itemsize)
        self.cost = CostModel(load_hardware("cpu"), preset, measured_memory=self.memory)

    def _runner(self, cache: LatentCache, layout: str) -> Runner:
        adapter = get_adapter(self.model.name)
        module = adapter.build(self.model, TEXT_DIM, 0, DTYPE, DEVICE)
        bound = adapter.bind(module)
        state = TrainState(module, OptimizerConfig(), 1000, bound.blocks, layout)
        loader = Loader(cache, TEXT_DIM, adapter, self.spec, LossConfig(), 0, DTYPE, DEVICE)
        return Runner(bound, state, loader, EngineConfig(), self.model.heads)

    def cluster(self, memory_bytes: int = PLENTY) -> Cluster:
        size = len(self.nodes)
        return Cluster(self.nodes, (memory_bytes,) * size, (1.0,) * size)

    def lengths(self, sample: SampleMeta) -> Lengths:
        return Lengths(sample.id, self.spec.tokens(sample.latent_shape), sample.text_tokens)

    def plan(self, policy: str, samples: Sequence[SampleMeta], rng: np.random.Generator, memory: int = PLENTY) -> Plan:
        """policy: one of the planner's, or `random` for any valid tiling."""
        if policy != "random":
            return make_plan([self.lengths(s) for s in samples], self.cluster(memory), self.cost, policy)
        text = [s.text_tokens for s in samples]
        tokens = [self.spec.tokens(s.latent_shape) for s in samples]
        if self.spec.joint is not None:
            tokens = [a + b for a, b in zip(tokens, text, strict=True)]
        size = len(self.nodes)
        round_ = random_round(rng, tokens, size, self.model.heads, text)
        return Plan(size, (dataclasses.replace(round_, ids=tuple(s.id for s in samples)),), "random")

    def predicted(self, plan: Plan) -> list[int]:
        return [x.peak_bytes for x in simulate(plan, self.cluster(), self.cost).ranks]

    def counted_by_rank(self, work: Sequence[tuple[Plan, Sequence[SampleMeta]]]) -> list[tuple[int, ...]]:
        """The counted peak of every rank in one real step of each plan."""

        def body(rank: int, comm: Comm) -> list[int]:
            return [peak_of_step(self.runners[rank], plan, samples, 0, comm) for plan, samples in work]

        return list(zip(*run_ranks(len(self.nodes), body, timeout_s=600), strict=True))

    def counted(self, work: Sequence[tuple[Plan, Sequence[SampleMeta]]]) -> list[int]:
        """That of the fullest rank."""
        return [max(peaks) for peaks in self.counted_by_rank(work)]
