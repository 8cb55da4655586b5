"""The session: one worker's side of the integration, from a global batch to this rank's share, its vote and the redo.

Every rank plans for itself: the planner is pure, and the meeting gives all of them the same seats, so that there is no
plan to send; the hash is compared before anything runs. Nothing here knows Ray: the meeting and the store are given.

A broken step never raises into the user's loop. The model then returns zeros, `backward` does nothing, `step` votes
against it, and `batches` gives the same batch again, planned for whoever is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from zellige_ray.attention.agreement import agree
from zellige_ray.attention.comm import Comm
from zellige_ray.attention.engine import AttentionEngine
from zellige_ray.attention.layout import compile_layout
from zellige_ray.config import LossConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.errors import CommError, ConfigError, ModelError
from zellige_ray.integrations.batch import Batch
from zellige_ray.integrations.meeting import Arrival, Seat, Verdict
from zellige_ray.integrations.prepared_model import PreparedModel
from zellige_ray.integrations.samples import Samples, draw
from zellige_ray.integrations.takeover import broadcast_state
from zellige_ray.placement import Cluster, CostModel, load_hardware, make_plan
from zellige_ray.placement import Sequence as Lengths
from zellige_ray.training.batch import Loader
from zellige_ray.training.reduction import GradientReducer

HARDWARE = {"cpu": "cpu", "cuda": "h200-8"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What `ZelligeConfig` says. Units: seconds."""

    seed: int = 0
    loss: LossConfig = field(default_factory=LossConfig)
    hardware: str | None = None
    policy: str = "zellige"
    kernel: str = "auto"
    transport: str = "auto"
    timeout_s: float = 600.0
    comm_timeout_s: float = 60.0
    ping_interval_s: float = 0.5
    ping_timeout_s: float = 10.0


class Stateful(Protocol):
    """An optimizer, a schedule, an average of weights."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class Session:
    """meet: takes this worker's arrival to the meeting. store: the torch store of the run."""

    def __init__(
        self,
        settings: Settings,
        seat: Seat,
        device: torch.device,
        meet: Callable[[Arrival], Verdict],
        store: Any,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._settings, self._seat, self._device = settings, seat, device
        self._meet_others, self._store, self._say = meet, store, say
        self._verdict: Verdict | None = None
        self._comm: Comm | None = None
        self._epoch = self._cancelled = -1
        self._step = -1  # the last step that counts and whose state is held here
        self._pass = self._drawn = 0
        self._over = False
        self._model: PreparedModel | None = None
        self._states: tuple[Stateful, ...] = ()
        self._reducer: GradientReducer | None = None
        self._views: list[Tensor | None] = []
        self._fault: CommError | None = None
        self._batch: Batch | None = None
        self._loss = 0.0
        self._finite = True

    @property
    def worker(self) -> str:
        """Its name at the meeting."""
        return self._seat.worker

    def close(self) -> None:
        """Leaves the epoch."""
        if self._comm is not None:
            self._comm.close()
            self._comm = None

    def cancel(self, epoch: int) -> None:
        """Ends waits of every epoch before `epoch`; any thread."""
        self._cancelled = max(self._cancelled, epoch)
        comm = self._comm
        if comm is not None and comm.epoch < epoch:
            comm.cancel()

    def prepare_model(self, module: torch.nn.Module, name: str, heads: int | None = None) -> PreparedModel:
        """See `torch_trainer.prepare_model`."""
        if self._model is not None:
            raise ConfigError("prepare_model was called twice; one model is trained per session")
        model = PreparedModel(module.to(self._device), name, heads, self._broke)
        if model.spec.max_degree == 1 and self._settings.policy != "dp":
            raise ModelError(
                f"{name} can't be cut over ranks, {self._settings.policy!r} would: set ZelligeConfig(policy='dp')"
            )
        self._model = model
        return model

    def batches(self, loader: Any, optimizer: Stateful, *states: Stateful) -> Iterator[Batch]:
        """See `torch_trainer.batches`."""
        if self._model is None:
            raise ConfigError("batches() was called before prepare_model(); prepare the model first")
        self._states = (optimizer, *states)
        pass_, self._pass = self._pass, self._pass + 1
        if self._verdict is None:
            self._meet(ok=False)
        for samples in draw(loader, self._settings.seed, pass_):
            if self._over:
                return
            self._drawn += 1
            while self._step < self._drawn:
                yield from self._shares(samples, pass_)

    def backward(self, loss: Tensor) -> float:
        """See `torch_trainer.backward`."""
        batch = self._current("backward")
        if self._fault is not None:
            return math.nan
        reducer = self._gradients()
        try:
            loss.backward()  # type: ignore[no-untyped-call]
            self._loss += float(loss.detach().double())
            if not batch.last:
                return math.nan
            reducer.reduce(self._comm)
            total = torch.tensor([self._loss], dtype=torch.float64, device=self._device)
            if self._comm is not None:
                self._comm.all_reduce(total).wait()
            self._finite = math.isfinite(float(total)) and math.isfinite(reducer.norm())
            return float(total)
        except CommError as fault:
            self._broke(fault)
            return math.nan

    def step(self, optimizer: Any) -> bool:
        """See `torch_trainer.step`."""
        batch = self._current("step")
        if optimizer is not self._states[0]:
            raise ConfigError(
                "step() got another optimizer than batches() did; newcomers would take over the wrong one"
            )
        self._batch = None
        if not batch.last and self._fault is None:
            return False
        return self._meet(ok=self._fault is None)

    # Meeting

    def _meet(self, ok: bool) -> bool:
        """Votes, applies what counts, and enters the next epoch; whether this is a moment to report."""
        report = False
        while True:
            verdict = self._verdict = self._meet_others(Arrival(self._seat, self._epoch, self._step, ok))
            if verdict.over:
                self._over = True
                return False
            if verdict.commit and self._step == verdict.step - 1:  # a newcomer has no part in it
                self._apply(verdict.step)
                report = verdict.report
            if verdict.epoch == self._epoch or self._enter(verdict):
                self._fault = None
                return report
            ok = False

    def _apply(self, step: int) -> None:
        if self._finite:
            cast(Any, self._states[0]).step()
        else:
            self._say(f"step {step}: loss or gradients are not finite; no weight was changed, on any rank")
        self._step = step

    def _enter(self, verdict: Verdict) -> bool:
        """Connects to the members of an epoch, and takes over the state where it is not held."""
        self.close()
        self._epoch = verdict.epoch
        rank, size = verdict.seats.index(self._seat), len(verdict.seats)
        self._say(f"epoch {verdict.epoch}: rank {rank} of {size}, behind step {verdict.step}")
        if rank == verdict.source:
            self._step = verdict.step
        try:
            if size > 1:
                backend = "nccl" if self._device.type == "cuda" else "gloo"
                self._comm = Comm.create(
                    self._store, verdict.epoch, rank, size, cast(Any, backend), self._settings.comm_timeout_s,
                    cancelled=lambda: self._cancelled > verdict.epoch,
                )  # fmt: skip
                if verdict.source is not None:
                    self._take_over(verdict, rank)
            self._step = verdict.step
            return True
        except CommError as fault:
            self._broke(fault)
            return False

    def _take_over(self, verdict: Verdict, rank: int) -> None:
        assert self._comm is not None and self._model is not None and verdict.source is not None
        state: Any = None
        if rank == verdict.source:
            state = (self._model.module.state_dict(), [s.state_dict() for s in self._states])
        model, states = broadcast_state(state, verdict.source, self._comm)
        if self._step != verdict.step:
            self._model.module.load_state_dict(model)
            for mine, theirs in zip(self._states, states, strict=True):
                mine.load_state_dict(theirs)

    def _broke(self, fault: CommError) -> None:
        self._fault = fault
        self._say(f"step {self._step + 1} is dropped: {fault}")

    # Shares

    def _shares(self, samples: Samples, pass_: int) -> Iterator[Batch]:
        """This rank's part of a batch, round by round; ends early where the step is broken."""
        try:
            shares = self._plan(samples, pass_)
        except CommError as fault:
            self._broke(fault)
            self._meet(ok=False)
            return
        self._loss, self._finite = 0.0, True
        self._gradients().zero()
        self._fault = None
        for batch in shares:
            self._batch = batch
            yield batch
            if self._batch is not None:
                raise ConfigError("the loop went on without step(): call backward() and step() once for every batch")
            if batch.last or batch.epoch != self._epoch:
                return

    def _plan(self, samples: Samples, pass_: int) -> Iterator[Batch]:
        assert self._model is not None and self._verdict is not None
        model, verdict, settings = self._model, self._verdict, self._settings
        spec = model.spec
        hardware = replace(load_hardware(settings.hardware or HARDWARE[self._device.type]), state="replicated")
        cost = CostModel(hardware, model.preset)
        lengths = [Lengths(m.id, spec.tokens(m.latent_shape), m.text_tokens, m.weight) for m in samples.metas]
        plan = make_plan(lengths, _cluster(verdict.seats), cost, settings.policy, epoch=verdict.epoch)
        agree(self._comm, plan.hash)
        text_dim = samples.read_text(samples.metas[0]).shape[1] if samples.metas else 0
        loader = Loader(
            cast(LatentCache, samples), text_dim, model.adapter, spec, settings.loss, settings.seed, model.dtype,
            self._device,
        )  # fmt: skip
        weights, by_id = loader.weights(samples.metas), {m.id: m for m in samples.metas}
        rank = verdict.seats.index(self._seat)

        def shares() -> Iterator[Batch]:
            for number, round_ in enumerate(plan.rounds, 1):
                layout = compile_layout(round_, rank, model.preset.heads)
                engine = AttentionEngine(
                    layout, self._comm, kernel=settings.kernel, transport=settings.transport, device=self._device
                )
                share = samples.conditioned(loader.share(layout, [by_id[i] for i in round_.ids], pass_, weights))
                yield Batch(share, engine, self._step + 1, verdict.epoch, number == len(plan.rounds))

        return shares()

    def _gradients(self) -> GradientReducer:
        """The flat gradients; made again where `zero_grad` took the parameters' own away."""
        assert self._model is not None
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        if self._reducer is None or any(p.grad is not v for p, v in zip(parameters, self._views, strict=True)):
            if self._loss:
                raise ConfigError("gradients were taken away between two rounds of a step: leave zero_grad() out")
            self._reducer = GradientReducer(parameters)
            self._views = [p.grad for p in parameters]
        return self._reducer

    def _current(self, what: str) -> Batch:
        if self._batch is None:
            raise ConfigError(f"{what}() was called outside of a batch: loop over batches(loader, optimizer)")
        return self._batch


def _cluster(seats: tuple[Seat, ...]) -> Cluster:
    """Ranks as the planner sees them; nodes are numbered as they appear."""
    nodes = list(dict.fromkeys(seat.node for seat in seats))
    return Cluster(
        node_of_rank=tuple(nodes.index(seat.node) for seat in seats),
        memory_bytes=tuple(seat.memory_bytes for seat in seats),
        speed=(1.0,) * len(seats),
    )
