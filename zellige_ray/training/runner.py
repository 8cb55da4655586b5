"""One rank's work on a plan: gradients of a batch, held-out loss, denoising; the same collectives on every rank."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zellige_ray.attention.agreement import agree
from zellige_ray.attention.clock import PhaseClock
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.engine import AttentionEngine
from zellige_ray.attention.layout import RankLayout, compile_layout
from zellige_ray.config import EngineConfig, LossConfig
from zellige_ray.data.index import SampleMeta
from zellige_ray.models.adapter import BoundModel, Packed
from zellige_ray.placement.plan import Plan
from zellige_ray.training.batch import Loader, Share
from zellige_ray.training.loss import flow_matching_loss
from zellige_ray.training.noise import HELD_OUT_PASS, PREVIEW_PASS
from zellige_ray.training.state import TrainState

GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rank knows once gradients are reduced; loss, norm and finite are equal on all ranks. Units: seconds."""

    loss: float
    norm: float
    finite: bool
    tokens: int
    linear_s: float
    attention_s: float
    exchange_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Denoised:
    """Tokens [start, stop) of a preview: float32 [n, C, pt, ph, pw]."""

    sample: str
    start: int
    tokens: NDArray[np.float32]


class Runner:
    """Runs plans on one rank. It decides nothing: the driver says what, when, and whether it counts.

    now: the clock of its times; `time.process_time` counts the processors' seconds instead of the wall's.
    """

    def __init__(self, bound: BoundModel, state: TrainState, loader: Loader, engine: EngineConfig, heads: int) -> None:
        self.bound, self.state, self.loader, self.engine, self.heads = bound, state, loader, engine, heads
        self.now: Callable[[], float] = time.perf_counter

    def gradients(self, plan: Plan, samples: Sequence[SampleMeta], pass_: int, comm: Comm | None) -> Outcome:
        """Forward, backward and reduction of one batch; the summed gradients stay in the state.

        Raises CommError or Regroup when a peer is lost; EngineError when ranks hold different plans.
        """
        agree(comm, plan.hash)
        self.state.layout.zero()
        weights = self.loader.weights(samples)
        start = self.now()
        loss, tokens, attention_s, exchange_s = 0.0, 0, 0.0, 0.0
        with self.state.layout.running(comm):
            for layout, metas in self._rounds(plan, samples, comm):
                engine = self.attention(layout, comm)
                share = self.loader.share(layout, metas, pass_, weights)
                local = flow_matching_loss(self.predict(share.packed, engine), share.target_TCphw, share.weight_T)
                local.backward()  # type: ignore[no-untyped-call]
                loss += float(local.detach().double())
                tokens += layout.num_tokens
                times = engine.clock.read()
                attention_s, exchange_s = attention_s + times.attention_s, exchange_s + times.exchange_s
        computed = self.now()
        self.state.layout.reduce(comm)
        total = self._sum(loss, comm)
        norm = self.state.layout.norm()
        linear_s = max(0.0, computed - start - attention_s - exchange_s)
        finite = bool(np.isfinite(norm) and np.isfinite(total))
        return Outcome(total, norm, finite, tokens, linear_s, attention_s, exchange_s, self.now() - computed)

    @torch.no_grad()
    def held_out(self, plan: Plan, samples: Sequence[SampleMeta], comm: Comm | None, draws: int = 2) -> float:
        """Loss of held-out samples under noise and timesteps that never change; equal on all ranks.

        Timesteps are spread over the quantiles of the training distribution, so that few samples give a steady figure.
        """
        agree(comm, plan.hash)
        weights, total = self.loader.weights(samples), 0.0
        with self.state.layout.running(comm):
            for draw in range(draws):
                time_of = _spread(samples, draw, self.loader.loss)
                for layout, metas in self._rounds(plan, samples, comm):
                    share = self.loader.share(layout, metas, HELD_OUT_PASS - draw, weights, time_of)
                    prediction = self.predict(share.packed, self.attention(layout, comm))
                    total += float(flow_matching_loss(prediction, share.target_TCphw, share.weight_T).double())
        return self._sum(total, comm) / draws

    @torch.no_grad()
    def denoise(self, plan: Plan, samples: Sequence[SampleMeta], comm: Comm | None, steps: int) -> list[Denoised]:
        """Euler steps from noise to latents with the EMA weights, all ranks together; this rank's tokens of samples."""
        agree(comm, plan.hash)
        weights = self.loader.weights(samples)
        self.state.swap_ema()
        try:
            out: list[Denoised] = []
            with self.state.layout.running(comm):
                for layout, metas in self._rounds(plan, samples, comm):
                    engine = self.attention(layout, comm)
                    share = self.loader.share(layout, metas, PREVIEW_PASS, weights, lambda _: 1.0)
                    x_TCphw = self._euler(share, engine, steps)
                    at = 0
                    for span in share.spans:
                        stop = at + span.stop - span.start
                        out.append(Denoised(span.sample.id, span.start, x_TCphw[at:stop].float().cpu().numpy()))
                        at = stop
            return out
        finally:
            self.state.swap_ema()

    def predict(self, packed: Packed, engine: AttentionEngine) -> Tensor:
        """The model's prediction in the run's precision; float32 or wider.

        bfloat16: weights stay float32, and matrix products and attention take copies in bfloat16, by autocast. They are
        not kept between uses, so that a copy is no larger than a layer; timesteps are never rounded.
        """
        if self.engine.dtype != "bfloat16":
            return self.bound(packed, engine)
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")  # of norms: what is meant
        with torch.autocast(self.loader.device.type, torch.bfloat16, cache_enabled=False):
            prediction = self.bound(packed, engine)
        return prediction.float()

    def _euler(self, share: Share, engine: AttentionEngine, steps: int) -> Tensor:
        x_TCphw = share.packed.tokens_TCphw
        grid = np.linspace(1.0, 0.0, steps + 1)
        shift = self.loader.loss.shift
        grid = shift * grid / (1.0 + (shift - 1.0) * grid)
        for now, after in itertools.pairwise(grid):
            timestep_R = torch.full_like(share.packed.timestep_R, float(now))
            packed = replace(share.packed, tokens_TCphw=x_TCphw, timestep_R=timestep_R)
            x_TCphw = x_TCphw + float(after - now) * self.predict(packed, engine)
        return x_TCphw

    def _rounds(
        self, plan: Plan, samples: Sequence[SampleMeta], comm: Comm | None
    ) -> list[tuple[RankLayout, list[SampleMeta]]]:
        by_id = {s.id: s for s in samples}
        rank = comm.rank if comm is not None else 0
        return [(compile_layout(r, rank, self.heads), [by_id[i] for i in r.ids]) for r in plan.rounds]

    def attention(self, layout: RankLayout, comm: Comm | None) -> AttentionEngine:
        """An engine for one round, by the run's settings."""
        return AttentionEngine(
            layout,
            comm,
            kernel=self.engine.kernel,
            transport=self.engine.transport,
            deterministic=self.engine.deterministic,
            clock=PhaseClock(self.loader.device, self.now),
            device=self.loader.device,
        )

    def _sum(self, value: float, comm: Comm | None) -> float:
        if comm is None or comm.size == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64, device=self.loader.device)
        return float(comm.all_reduce(total).wait())


def _spread(samples: Sequence[SampleMeta], draw: int, loss: LossConfig) -> Callable[[str], float]:
    """A timestep for each sample: the golden-ratio sequence over the quantiles of the logit-normal."""
    of: dict[str, float] = {}
    for i, s in enumerate(sorted(samples, key=lambda s: s.id)):
        quantile = (0.5 + GOLDEN * (2 * i + draw)) % 1.0
        normal = NormalDist(loss.timestep_mean, loss.timestep_std).inv_cdf(min(max(quantile, 1e-3), 1 - 1e-3))
        t = 1.0 / (1.0 + np.exp(-normal))
        of[s.id] = float(loss.shift * t / (1.0 + (loss.shift - 1.0) * t))
    return of.__getitem__
