"""The worker: one rank's model, state and communicator, driven by orders. A plain class; Ray touches it at the edge."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import zellige_ray
from zellige_ray.actors.identity import model_hash, room_bytes
from zellige_ray.actors.messages import (
    Corrupt,
    Decision,
    Invitation,
    Member,
    Order,
    Reply,
    Saving,
    Standing,
    Starved,
    Vote,
)
from zellige_ray.attention.comm import Comm
from zellige_ray.config import RunConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.index import SampleMeta
from zellige_ray.errors import CheckpointError, CommError, DataError, ModelError, PoolError
from zellige_ray.models.adapter import ModelAdapter
from zellige_ray.models.registry import get_adapter
from zellige_ray.models.specs import get_spec
from zellige_ray.monitor.events import RankTimes
from zellige_ray.placement.memory import MemoryModel
from zellige_ray.placement.step_curves import StepCurves
from zellige_ray.training import checkpoint_files, checkpoint_io, profile
from zellige_ray.training.batch import Loader
from zellige_ray.training.layouts import Place
from zellige_ray.training.layouts.copies import Copies, needed
from zellige_ray.training.live_bytes import StepPeak
from zellige_ray.training.out_of_memory import let_go, out_of_memory
from zellige_ray.training.previews import Previews
from zellige_ray.training.profile_scope import Scope
from zellige_ray.training.runner import Runner
from zellige_ray.training.state import TrainState
from zellige_ray.training.weigh import peak_of_step, state_bytes, weigh

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}  # of weights and optimizer


class Worker:
    """Holds its part of the state. Orders run in one thread; `ping` and `cancel` may come from another at any time."""

    def __init__(
        self, name: str, node: str, config: RunConfig, cache_folder: str, connect: Callable[[Any], Any]
    ) -> None:
        """connect: turns the store named in an invitation into a torch store."""
        self.name, self.node, self.config, self.cache_folder = name, node, config, cache_folder
        self._connect = connect
        self._comm: Comm | None = None
        self._epoch = -1
        self._cancelled = -1
        self._vote: Vote | None = None
        self._member: Member | None = None
        self._saving: checkpoint_io.BackgroundSave | None = None

    def setup(self, checkpoint: str | None) -> Member:
        """Builds the model and its state; nothing collective.

        checkpoint: which `join` reads, once it is known what part of it this rank holds.
        """
        config = self.config
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = DTYPES[config.engine.dtype]
        memory, self._peak = room_bytes(self._device, config), StepPeak(self._device)
        cache = LatentCache(Path(self.cache_folder))
        text_dim = cache.text_dim
        self._adapter: ModelAdapter = get_adapter(config.model.name)
        self._spec = get_spec(config.model.name)
        self._module = self._adapter.build(config.model, text_dim, config.seed, dtype, self._device)
        bound = self._adapter.bind(self._module)
        self._state = TrainState(self._module, config.optimizer, config.steps, bound.blocks, config.state.layout)
        self._copies = Copies()
        self._checkpoint, at = checkpoint, self._state.step
        if checkpoint is not None:
            at = checkpoint_files.read_position(Path(checkpoint)).step
        loader = Loader(cache, text_dim, self._adapter, self._spec, config.loss, config.seed, dtype, self._device)
        self._runner = Runner(bound, self._state, loader, config.engine, config.model.heads)
        self._vote = None
        self._member = Member(
            self.name, self.node, os.getpid(), str(self._device), memory, at,
            zellige_ray.__version__, model_hash(self._module),
        )  # fmt: skip
        return self._member

    def ready(self, checkpoint: str | None) -> Member:
        """What `setup` answered; sets it up when nobody has."""
        return self._member or self.setup(checkpoint)

    # Control lane

    def ping(self) -> int:
        """The epoch this worker is in; an answer is the sign of life."""
        return self._epoch

    def standing(self) -> Standing | None:
        """What a driver that starts again must know; None before `setup` is done."""
        if self._member is None:
            return None
        return Standing(self._member, self._epoch, self._state.step, self._vote)

    def cancel(self, epoch: int) -> None:
        """Ends work in flight of every epoch before `epoch`: the waiting order answers `broken`."""
        self._cancelled = max(self._cancelled, epoch)
        comm = self._comm
        if comm is not None and comm.epoch < epoch:
            comm.cancel()

    # Work lane

    def join(self, invitation: Invitation) -> Reply:
        """Forms the communicator of a new epoch; ranks take their places in it, and the state that goes with them."""
        return self._guard(invitation.epoch, lambda: self._join(invitation))

    def probe(self, epoch: int) -> Reply:
        """A short look at this worker's device, all ranks at once; the value is a Probe."""
        return self._guard(epoch, lambda: profile.probe(self._runner, self._spec, self._comm))

    def measure(self, epoch: int, scope: Scope) -> Reply:
        """Times the model's own blocks and what ranks do together, all of them at once; the value is StepCurves."""
        return self._guard(epoch, lambda: self._measure(scope))

    def count_processor_time(self) -> None:
        """From now on all times are those of this process's processors: what ranks that share processors compare by."""
        self._runner.now = time.process_time

    def weigh(self, epoch: int) -> Reply:
        """The memory model of this rank, from a few small steps; the value is a MemoryModel."""

        def work() -> MemoryModel:
            model = weigh(self._runner, self.config.model, self._comm)
            self._peak.settle(state_bytes(self._runner))
            return model

        return self._sparing(epoch, work)

    def peak(self, order: Order, update: bool = False) -> Reply:
        """Most bytes that tensors of this rank hold in a step that nobody decides.

        update: it is applied, which ends the run's curve; False: gradients only, it will never count.
        """

        def count() -> int:
            return peak_of_step(self._runner, order.plan, order.samples, order.pass_, self._comm, update)

        return self._on(order, count)

    def step(self, order: Order) -> Reply:
        """Gradients of one step, reduced over all ranks, kept until they are decided; the value is a Vote."""
        return self._on(order, lambda: self._gradients(order, keep=True))

    def rehearse(self, order: Order) -> Reply:
        """The same work as a step that will never count."""
        return self._on(order, lambda: self._gradients(order, keep=False))

    def held_out(self, order: Order) -> Reply:
        """The held-out loss, equal on all ranks."""
        return self._on(order, lambda: self._runner.held_out(order.plan, order.samples, self._comm))

    def denoise(self, order: Order) -> Reply:
        """This rank's tokens of the previews."""
        return self._on(order, lambda: self._runner.denoise(order.plan, order.samples, self._comm, order.steps))

    def render(self, folder: str, sample: Any, parts: Any) -> str:
        """Decodes one preview from all ranks' tokens and writes it; the file's name."""
        return Previews(self.config.data, self._adapter).write(folder, sample, parts)

    def save(self, folder: str, decided: Decision, writers: int) -> Saving:
        """Applies what is decided, copies its part of the state, and begins to write the copy in the background.

        writers: ranks that write a part into `folder`.
        """
        self._apply(decided)
        first = self._state.layout.place.groups[0]
        if len(first) != writers:
            return Saving(decided.step, 0, error=f"{len(first)} ranks hold the state, {writers} are there to write it")
        if self._saving is not None:
            self._saving.wait(self.config.workers.step_timeout_s)
        self._saving = checkpoint_io.BackgroundSave(folder, self._state)
        return self.saving()

    def assemble(self, folder: str, writers: int) -> str:
        """Makes one checkpoint of the parts that are all written; what went wrong, if anything."""
        try:
            checkpoint_io.assemble(folder, writers)
        except CheckpointError as fault:
            return str(fault)
        return ""

    def saving(self) -> Saving:
        """How far the last `save` is."""
        save = self._saving
        if save is None:
            return Saving(self._state.step, 0, error="this worker is saving nothing")
        return Saving(save.step, save.num_bytes, save.done, save.error)

    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to its neighbours in exchanges of the present epoch."""
        return self._comm.sent_bytes if self._comm is not None else 0

    def close(self) -> None:
        """Leaves the current epoch."""
        if self._comm is not None:
            self._comm.close()
            self._comm = None

    def _guard(self, epoch: int, work: Callable[[], Any]) -> Reply:
        if epoch < self._cancelled:
            return Reply(self.name, epoch, "broken", reason=f"epoch {epoch} is over")
        try:
            return Reply(self.name, epoch, "ok", work())
        except CommError as fault:
            return Reply(self.name, epoch, "broken", reason=f"{type(fault).__name__}: {fault}")

    def _sparing(self, epoch: int, work: Callable[[], Any]) -> Reply:
        """As `_guard`; where memory does not suffice that is the answer, and nothing of the work stays."""
        try:
            return self._guard(epoch, work)
        except (MemoryError, RuntimeError) as fault:
            said = out_of_memory(fault)
            if said is None:
                raise
        self._vote = None
        let_go(self._device)  # the fault is gone by now, and with it the frames that held tensors
        return Reply(self.name, epoch, "broken", Starved(said), f"out of memory: {said}")

    def _unreadable(self, samples: Sequence[SampleMeta]) -> tuple[str, ...]:
        """The samples that this worker can't read, in order of their ids."""
        cache, bad = LatentCache(Path(self.cache_folder)), []
        for sample in sorted(samples, key=lambda s: s.id):
            try:
                cache.read(sample)
            except DataError:
                bad.append(sample.id)
        return tuple(bad)

    def _on(self, order: Order, work: Callable[[], Any]) -> Reply:
        if order.epoch != self._epoch:
            return Reply(self.name, order.epoch, "broken", reason=f"this worker is in epoch {self._epoch}")

        def settle() -> None:
            self._apply(order.decided)
            self._keep_copies()

        try:
            applied = self._guard(order.epoch, settle)
            return self._sparing(order.epoch, work) if applied.status == "ok" else applied
        except DataError as fault:
            bad = self._unreadable(order.samples)
            if not bad:
                raise
            return Reply(self.name, order.epoch, "broken", Corrupt(bad), str(fault))

    def _apply(self, decided: Decision) -> None:
        if decided.step <= self._state.step:
            return
        if self._vote is None or self._vote.step != decided.step:
            raise PoolError(
                f"worker {self.name} is asked to apply step {decided.step}, it holds gradients of "
                f"{self._vote and self._vote.step} at step {self._state.step}"
            )
        self._state.apply(decided.step, decided.update)
        self._vote = None

    def _join(self, invitation: Invitation) -> int:
        if self._vote is not None and self._vote.step == invitation.decided.step:
            self._apply(invitation.decided)
        self._vote = None
        self.close()
        self._epoch = invitation.epoch
        if invitation.size > 1:
            self._comm = Comm.create(
                self._connect(invitation.store),
                invitation.epoch,
                invitation.rank,
                invitation.size,
                "nccl" if self._device.type == "cuda" else "gloo",
                self.config.workers.comm_timeout_s,
                cancelled=lambda: invitation.epoch < self._cancelled,
            )
            if invitation.epoch < self._cancelled:
                self._comm.cancel()
        self._copies.leave()
        nodes, limit = invitation.node_of_rank[: invitation.seats], invitation.decided.step
        if invitation.rank < invitation.seats:
            self._check_room(Place(self.config.state.layout, nodes, invitation.rank))
        step = self._state.settle(self._comm, nodes, limit, self._copies.held())
        saved = Path(self._checkpoint) if self._checkpoint is not None else None
        if step != limit and saved is not None and checkpoint_files.read_position(saved).step == limit:
            checkpoint_io.load(str(saved), self._state)
            step = limit
        return -1 if step is None else step

    def _check_room(self, place: Place) -> None:
        assert self._member is not None
        needed, room = self._state.bytes_at(place), self._member.memory_bytes
        if needed > room:
            raise ModelError(
                f"state.layout {place.layout} on {len(place.node_of_rank)} ranks needs {needed / 2**30:.2f} GiB "
                f"on rank {place.rank} for parameters, gradients, optimizer and EMA; it has {room / 2**30:.2f} GiB: "
                "set state.layout to fsdp, add workers, or take a smaller model"
            )

    def _keep_copies(self) -> None:
        """Starts another cut when one is due; see `Copies`."""
        state, settings = self._state, self.config.state
        place = state.layout.place
        if self._comm is None or settings.redundancy == 1 or not needed(place):
            return
        self._copies.decided(self._epoch, state.step)
        if self._copies.due(self._epoch, state.step, settings.every):
            self._copies.begin(self._comm, state.step, place, state.layout.units, state.contents())

    def _measure(self, scope: Scope) -> StepCurves:
        return profile.measure(self._runner, self._spec, self.config, self._comm, scope)

    def _gradients(self, order: Order, keep: bool) -> Vote:
        self._vote = None
        self._peak.restart()
        start, started = time.perf_counter(), time.time()
        out = self._runner.gradients(order.plan, order.samples, order.pass_, self._comm)
        if keep:
            self._copies.land()
        rank = self._comm.rank if self._comm is not None else 0
        rss, peak = self._peak.resident(), self._peak.read()
        times = RankTimes(rank, out.linear_s, out.attention_s, out.exchange_s, out.idle_s, out.tokens, rss, peak)
        step = self._state.step + 1
        seconds = time.perf_counter() - start
        vote = Vote(
            step, order.plan.hash, started, out.loss, out.norm, out.finite, self._state.lr_at(step), seconds, times
        )
        self._vote = vote if keep else None
        return vote
