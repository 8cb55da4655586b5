"""The training state of a rank: parameters, AdamW, learning rate, EMA and the step counter, applied once per step.

What a rank holds of it is its layout's affair. Applying a step needs nobody else, in any layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zellige_ray.attention.comm import Comm
from zellige_ray.config import OptimizerConfig
from zellige_ray.training.blockwise import Whole, empty_like, num_bytes, restore, whole_of
from zellige_ray.training.layouts import Place
from zellige_ray.training.layouts.content import EMA, WEIGHT, Content
from zellige_ray.training.layouts.layout import Layout
from zellige_ray.training.layouts.moving import Held, Holding, announce, move, newest
from zellige_ray.training.optimizers import blockwise, make_optimizer, place_state
from zellige_ray.training.schedules import lr_at


class TrainState:
    """Parameters, optimizer and EMA of one rank; a new one holds everything."""

    def __init__(
        self,
        module: nn.Module,
        config: OptimizerConfig,
        total_steps: int,
        blocks: Sequence[nn.Module] = (),
        layout: str = "replicated",
    ) -> None:
        """total_steps: the run's last step, where the schedule ends. blocks: of the model, which layouts cut.

        layout: a key of `zellige_ray.training.layouts.layouts`.
        """
        self.module = module
        self.config = config
        self.total_steps = total_steps
        self.step = 0
        self.layout = Layout(module, blocks, layout)
        self.pieces = self.layout.pieces()
        self.optimizer = self._make_optimizer()
        self.blockwise = config.name in blockwise
        self.averaged = config.ema_decay > 0
        self.ema: dict[str, Tensor] = {n: p.detach().clone() for n, p in self.pieces} if self.averaged else {}

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer([p for _, p in self.pieces], self.config)

    def lr_at(self, step: int) -> float:
        """Learning rate of a step, counted from 1."""
        return lr_at(self.config, step, self.total_steps)

    def apply(self, step: int, update: bool = True) -> None:
        """Applies the reduced gradients as step `step`; does nothing when that step was applied before.

        update: False counts the step and leaves every weight as it is (a non-finite gradient). Raises ValueError when a
        step was missed.
        """
        if step <= self.step:
            return
        if step != self.step + 1:
            raise ValueError(f"step {step} can't be applied: this rank is at step {self.step}")
        if update:
            norm, limit = self.layout.norm(), self.config.clip_norm
            if limit is not None and norm > limit:
                self.layout.scale(limit / norm)
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr_at(step)
            self.optimizer.step()
            self._update_ema(step)
        self.step = step

    @torch.no_grad()
    def _update_ema(self, step: int) -> None:
        if not self.ema:
            return
        decay = min(self.config.ema_decay, (1 + step) / (10 + step))  # young averages follow fast
        averages = [self.ema[n] for n, _ in self.pieces]
        torch._foreach_lerp_(averages, [p.detach() for _, p in self.pieces], 1 - decay)

    def swap_ema(self) -> None:
        """Exchanges parameters and EMA in place; call it again to swap back. Nothing happens without an EMA."""
        with torch.no_grad():
            for name, p in self.pieces if self.ema else []:
                kept = p.detach().clone()
                p.copy_(self.ema[name])
                self.ema[name].copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """Whole tensors and counters, with the optimizer's state by parameter name.

        Raises ValueError where this rank does not hold everything; see `full_state_dict`.
        """
        return self.full_state_dict(None)

    def full_state_dict(self, comm: Comm | None) -> dict[str, Any]:
        """`state_dict` in any layout: all ranks of the epoch call it together, each gets everything.

        The tensors are the live ones where this rank holds them whole, else copies. Raises CommError or Regroup.
        """
        model = self.module.state_dict()
        moments: dict[str, dict[str, Tensor]] = {}
        averages: dict[str, Tensor] = {}
        if not self.sharded:
            moments = {n: _tensors(self.optimizer.state[p]) for n, p in self.pieces if p in self.optimizer.state}
            moments = {n: dict(kinds) for n, kinds in self.whole().items()} if self.blockwise else moments
            return {"model": model, "optimizer": moments, "ema": dict(self.ema), "step": self.step}
        if comm is None:
            raise ValueError("this rank holds a part of the state: full_state_dict(comm) gathers it from all ranks")
        for unit, content in zip(self.layout.units, self.contents(), strict=True):
            for kind, values in content.vectors.items():
                for name, tensor in unit.by_name(unit.whole_of(values, comm)):
                    if kind == WEIGHT:
                        model[name] = tensor
                    elif kind == EMA:
                        averages[name] = tensor
                    else:
                        moments.setdefault(name, {})[kind] = tensor
            for name in (e.name for e in unit.entries if content.counters):
                moments[name] |= {k: torch.tensor(value) for k, value in content.counters.items()}
        return {"model": model, "optimizer": moments, "ema": averages, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a `state_dict` of the same architecture, of which a rank keeps what its layout gives it.

        Raises RuntimeError where names or shapes differ.
        """
        _check_names(self.module, state["model"])
        with torch.no_grad():
            for name, buffer in self.module.named_buffers():
                if name in state["model"]:
                    buffer.copy_(state["model"][name])
        contents = []
        for unit in self.layout.units:
            names = [e.name for e in unit.entries]
            vectors = {WEIGHT: unit.cut([state["model"][n] for n in names]).to(unit.dtype)}
            counters: dict[str, float] = {}
            if unit.trained and self.averaged:
                vectors[EMA] = unit.cut([state["ema"].get(n, state["model"][n]) for n in names])
            if unit.trained and not self.blockwise and all(n in state["optimizer"] for n in names):
                moments = [state["optimizer"][n] for n in names]
                for kind, value in moments[0].items():
                    if value.ndim:
                        vectors[kind] = unit.cut([m[kind] for m in moments])
                    else:
                        counters[kind] = float(value)
            contents.append(Content(vectors, counters))
        self.hold(self.layout.place, int(state["step"]), contents, state["optimizer"] if self.blockwise else None)

    def whole(self) -> Whole:
        """The optimizer's state where that moves whole, by parameter and kind, as it is held; else empty."""
        return whole_of(self.optimizer, self.pieces) if self.blockwise else {}

    @property
    def sharded(self) -> bool:
        """Whether this rank holds less than everything."""
        return len(self.layout.place.members) > 1

    def bytes_at(self, place: Place) -> int:
        """What a rank at a place holds: weights, gradients, the optimizer's two moments, EMA, and gathered blocks."""
        vectors = (2 if self.blockwise else 4) + self.averaged
        held = sum(
            (stop - start) * u.dtype.itemsize * (vectors if u.trained else 1)
            for u in self.layout.units
            for start, stop in [place.interval(u.num)]
        )
        held += num_bytes(self.whole())
        return held + (self.layout.gathered_bytes if len(place.members) > 1 else 0)

    def contents(self) -> list[Content]:
        """What this rank holds, by unit; no copies where it holds a vector as it is."""
        found = dict(self.pieces)
        one = next((s for _, p in self.pieces if (s := _tensors(self.optimizer.state.get(p, {})))), {})
        out = []
        for unit in self.layout.units:
            content = Content({WEIGHT: unit.own}, {})
            names = [e.name for e, _, _ in unit.spans()]
            if unit.trained and self.averaged:
                content.vectors[EMA] = _joined([self.ema[n] for n in names], unit.own)
            states = [self.optimizer.state.get(found[n], {}) for n in names] if unit.trained else []
            for kind, value in one.items() if unit.trained and all(states) and not self.blockwise else ():
                if value.ndim:
                    content.vectors[kind] = _joined([s[kind] for s in states], value).to(unit.device)
                else:
                    content.counters[kind] = float(states[0][kind] if states else value)
            out.append(content)
        return out

    def hold(self, place: Place, step: int, contents: Sequence[Content], whole: Whole | None = None) -> None:
        """Takes over, by unit, what a place gives this rank; the vectors are kept, not copied.

        whole: the optimizer's state where that moves whole; None keeps this rank's own.
        """
        whole = self.whole() if whole is None else whole
        self.layout.take(place, [c.vectors[WEIGHT] for c in contents])
        self.pieces, self.step = self.layout.pieces(), step
        self.optimizer = self._make_optimizer()
        found = dict(self.pieces)
        self.ema = {}
        for unit, content in zip(self.layout.units, contents, strict=True):
            for e, start, stop in unit.spans() if unit.trained else ():
                piece, span = found[e.name], slice(start - unit.start, stop - unit.start)
                parts = {k: v[span].view(piece.shape) for k, v in content.vectors.items() if k != WEIGHT}
                if self.averaged:
                    self.ema[e.name] = parts.pop(EMA)
                if parts:
                    counters = {k: torch.tensor(value) for k, value in content.counters.items()}
                    self.optimizer.state[piece] = place_state({**counters, **parts}, piece, self.config)
        if self.blockwise and whole:
            restore(self.optimizer, self.pieces, whole)

    def settle(
        self,
        comm: Comm | None,
        node_of_rank: Sequence[int],
        limit: int,
        copies: Sequence[Held] = (),
        layout: str | None = None,
    ) -> int | None:
        """Takes this rank's place in an epoch, from whoever holds what it needs; all ranks of `comm` call it.

        node_of_rank: of those who have a place; ranks of `comm` behind them give what they hold, and keep it. limit:
        the last step that counts. copies: what this rank holds beside its own part. layout: another one than before.
        Returns the newest step up to the limit that the ranks together hold, which all of them hold behind it, or None:
        then nothing has changed. Raises CommError or Regroup, and has changed nothing.
        """
        here, rank = self.layout.place, comm.rank if comm is not None else 0
        target = Place(layout or here.layout, tuple(node_of_rank), rank)
        contents = self.contents()
        mine = [(Holding.of(self.step, here, contents), contents), *copies]
        table = announce(comm, [holding for holding, _ in mine])
        step = newest(table, limit, [u.num for u in self.layout.units])
        if step is None:
            return None
        taken = move(comm, table, mine, step, target, self.layout.units)
        behind = [held[0].step != step for held in table]
        whole = None
        if comm is not None and any(behind) and not all(behind):
            for buffer in self.module.buffers():
                comm.broadcast(buffer, behind.index(False)).wait()
            whole = self._shared(comm, behind)
        if rank < len(target.node_of_rank) and (step, target) != (self.step, here):
            self.hold(target, step, taken, whole)
        return step

    def _shared(self, comm: Comm, behind: Sequence[bool]) -> Whole:
        """The whole state of the first rank that is not behind; all ranks call it. Own tensors stay as they are."""
        root, held = behind.index(False), self.whole()
        whole = held if not behind[comm.rank] else empty_like(held)
        for name in sorted(whole):
            for kind in sorted(whole[name]):
                comm.broadcast(whole[name][kind], root).wait()
        return whole

    def tensors(self) -> list[Tensor]:
        """Every tensor that this rank holds, in an order that is the same where the same is held."""
        out = [u.own for u in self.layout.units] + [b.data for b in self.module.buffers()]
        if self.blockwise:
            out += [kinds[k] for kinds in self.whole().values() for k in sorted(kinds)]
            return out + [self.ema[n] for n, _ in self.pieces if self.ema]
        self._materialise()
        for _, p in self.pieces:
            out += [self.optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq", "step")]
        return out + [self.ema[n] for n, _ in self.pieces if self.ema]

    def _materialise(self) -> None:
        """Gives AdamW its moments before the first step, as it would itself."""
        for _, p in self.pieces:
            if p not in self.optimizer.state:
                fresh = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(p, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(p, memory_format=torch.preserve_format),
                }
                self.optimizer.state[p] = place_state(fresh, p, self.config)


def _joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([p.reshape(-1) for p in parts]) if parts else like.new_empty(0)


def _tensors(values: dict[str, Any]) -> dict[str, Tensor]:
    return {k: v for k, v in values.items() if isinstance(v, Tensor)}


def _check_names(module: nn.Module, given: dict[str, Tensor]) -> None:
    expected = {n: tuple(t.shape) for n, t in module.state_dict().items()}
    missing, surplus = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    other = [
        f"{n}: {tuple(given[n].shape)}, not {s}" for n, s in expected.items() if n in given and given[n].shape != s
    ]
    faults = [
        f"{what} {', '.join(names[:8])}" + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        for what, names in (("missing", missing), ("unexpected", surplus), ("size mismatch for", other))
        if names
    ]
    if faults:
        raise RuntimeError(f"the state is of another architecture: {'; '.join(faults)}")
