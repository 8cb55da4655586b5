"""Sessions as threads over gloo: any number of workers has one worker's losses, also through deaths and joins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed import HashStore
from torch.utils.data import DataLoader, Dataset

from zellige_ray.config import ModelConfig
from zellige_ray.errors import ConfigError, DataError, ModelError
from zellige_ray.integrations.meeting import Arrival, Meeting, Seat, Verdict
from zellige_ray.integrations.samples import Samples, draw
from zellige_ray.integrations.session import Session, Settings
from zellige_ray.models.registry import get_adapter
from zellige_ray.models.specs import get_spec

pytestmark = pytest.mark.dist
SHAPES = [(1, 2, 2), (3, 4, 6), (1, 4, 6), (5, 6, 8), (2, 2, 2), (1, 6, 6), (4, 4, 4)]
TEXT_DIM = 6
CPU = torch.device("cpu")
SMALL = ModelConfig(name="dit", layers=2, heads=3, head_dim=12)


class Clips(Dataset[Any]):
    """Seven samples of different sizes; counts reads."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(SHAPES)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        self.reads.append(i)
        g = torch.Generator().manual_seed(i)
        return {
            "latents": torch.randn((16, *SHAPES[i]), generator=g, dtype=torch.float64),
            "text": torch.randn((i % 3, TEXT_DIM), generator=g, dtype=torch.float64),
        }


class ShapedClips(Clips):
    """The same, which says its shapes without being read."""

    def shape(self, i: int) -> tuple[tuple[int, ...], int]:
        return (16, *SHAPES[i]), i % 3


class World:
    """A meeting, a store, and workers as threads."""

    def __init__(self, size: int) -> None:
        self.meeting, self.store = Meeting(size), HashStore()
        self.losses: dict[str, list[tuple[int, float]]] = {}
        self.sessions: dict[str, Session] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.faults: list[BaseException] = []
        self.threads: dict[str, threading.Thread] = {}
        self.lock = threading.Lock()
        self.before_meeting: Callable[[int, int], None] = lambda epoch, step: None

    def start(
        self,
        name: str,
        passes: int = 2,
        die_at: int | None = None,
        dataset: Any = None,
        config: ModelConfig = SMALL,
        **more: Any,
    ) -> None:
        arguments = (name, passes, die_at, dataset or Clips(), config, more)
        self.threads[name] = threading.Thread(target=self._guarded, args=arguments, daemon=True)
        self.threads[name].start()

    def join(self) -> None:
        end = time.monotonic() + 120
        while any(t.is_alive() for t in list(self.threads.values())) and time.monotonic() < end and not self.faults:
            time.sleep(0.01)
        if self.faults:
            raise self.faults[0]
        assert not any(t.is_alive() for t in self.threads.values())

    def die(self, name: str) -> None:
        epoch = self.meeting.epoch
        self.sessions[name].close()
        self.meeting.lose(name)
        for other, session in self.sessions.items():
            if other != name:
                session.cancel(epoch + 1)

    def _guarded(self, *arguments: Any) -> None:
        try:
            self._run(*arguments)
        except BaseException as fault:  # noqa: BLE001
            self.faults.append(fault)

    def _run(
        self, name: str, passes: int, die_at: int | None, dataset: Any, config: ModelConfig, more: dict[str, Any]
    ) -> None:
        settings = Settings(seed=3, kernel="sdpa", transport="p2p", comm_timeout_s=20.0, **more)

        def meet(arrival: Arrival) -> Verdict:
            if name == "a":  # arrival.step: what it holds; the vote is on the next one
                self.before_meeting(arrival.epoch, arrival.step + arrival.ok)
            return self.meeting.meet(arrival, 60)

        session = Session(settings, Seat(name, "n", 8 << 30), CPU, meet, self.store)
        self.sessions[name] = session
        with self.lock:
            module = get_adapter(config.name).build(config, TEXT_DIM, ord(name), torch.float64, CPU)
            if config.name != "dit":  # output weights that are not zero, the same on every worker
                g = torch.Generator().manual_seed(1)
                with torch.no_grad():
                    for p in module.parameters():
                        p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) * 0.1)
        model = session.prepare_model(module, config.name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = self.losses.setdefault(name, [])
        loader: Any = DataLoader(dataset, batch_size=3, shuffle=True, collate_fn=list)
        for _ in range(passes):
            for batch in session.batches(loader, optimizer):
                if batch.step == die_at:
                    self.die(name)
                    return
                loss = session.backward(batch.loss(model(batch)))
                step = batch.step
                session.step(optimizer)
                if loss == loss and session._step >= step:
                    losses.append((step, loss))
        self.weights[name] = torch.cat([p.detach().flatten() for p in module.parameters()])
        session.close()
        self.meeting.lose(name, finished=True)


def run(workers: str, **more: Any) -> World:
    world = World(len(workers))
    for name in workers:
        world.start(name, **more)
    world.join()
    return world


@pytest.fixture(scope="module")
def alone() -> World:
    return run("a")


def same(world: World, name: str, alone: World, first: int = 1) -> None:
    want = [x for x in alone.losses["a"] if x[0] >= first]
    assert [s for s, _ in world.losses[name]] == [s for s, _ in want]
    assert [x for _, x in world.losses[name]] == pytest.approx([x for _, x in want], rel=1e-10)
    torch.testing.assert_close(world.weights[name], alone.weights["a"], rtol=1e-7, atol=1e-10)


def test_one_worker_walks_every_pass_and_learns(alone: World) -> None:
    assert [s for s, _ in alone.losses["a"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("more", [{}, {"policy": "cp"}, {"policy": "dp"}])
def test_three_workers_have_one_workers_losses_and_weights_under_any_policy(alone: World, more: dict[str, Any]) -> None:
    world = run("abc", **more)
    for name in "abc":
        same(world, name, alone)


def test_a_worker_that_dies_between_its_batch_and_its_vote_costs_nothing(alone: World) -> None:
    world = World(3)
    for name, die_at in (("a", None), ("b", 3), ("c", None)):
        world.start(name, die_at=die_at)
    world.join()
    same(world, "a", alone)
    same(world, "c", alone)


@pytest.mark.parametrize("behind", [2, 3, 5, 6])
def test_a_newcomer_takes_over_behind_any_step_and_walks_on_with_the_others(alone: World, behind: int) -> None:
    world = World(2)
    came = threading.Event()

    def wait_for_newcomer(epoch: int, step: int) -> None:
        if epoch > 0 and step == behind and not came.is_set():
            world.start("z")
            while "z" not in world.meeting._arrived:
                time.sleep(0.005)
            came.set()

    world.before_meeting = wait_for_newcomer
    world.start("a")
    world.start("b", die_at=2)
    world.join()
    same(world, "a", alone)
    same(world, "z", alone, first=behind + 1)


def test_a_data_set_that_says_its_shapes_is_read_only_where_it_is_needed() -> None:
    datasets = [ShapedClips(), ShapedClips()]
    world = World(2)
    for name, dataset in zip("ab", datasets, strict=True):
        world.start(name, passes=1, dataset=dataset, policy="dp")
    world.join()
    reads = [set(d.reads) for d in datasets]
    assert reads[0] | reads[1] == set(range(7))
    assert len(reads[0]) + len(reads[1]) < 12, "each text_dim probe is one more read, whole batches are not"


def test_a_pass_is_a_function_of_seed_and_number_and_leaves_torchs_own_seed_alone() -> None:
    loader: Any = DataLoader(ShapedClips(), batch_size=3, shuffle=True)

    def ids(seed: int, pass_: int) -> list[str]:
        return [m.id for samples in draw(loader, seed, pass_) for m in samples.metas]

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    assert ids(0, 0) == ids(0, 0) != ids(0, 1)
    assert sorted(ids(0, 1)) == sorted(map(str, range(7)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_a_loader_must_not_be_is_named() -> None:
    from torch.utils.data import DistributedSampler

    split: Any = DataLoader(Clips(), sampler=DistributedSampler(Clips(), num_replicas=2, rank=0))
    with pytest.raises(ConfigError, match="leave out prepare_data_loader"):
        next(draw(split, 0, 0))
    with pytest.raises(DataError, match="expected a mapping with latents and text, or a pair"):
        _ = Samples([3], [0]).metas
    with pytest.raises(DataError, match=r"latents \(2, 2\), text \(1, 1\)"):
        _ = Samples([(torch.zeros(2, 2), torch.zeros(1, 1))], [0]).metas


def one_session() -> tuple[Session, Any, Iterator[Any]]:
    meeting = Meeting(1)
    session = Session(Settings(kernel="sdpa"), Seat("a", "n", 8 << 30), CPU, lambda a: meeting.meet(a, 5), HashStore())
    module = get_adapter("dit").build(ModelConfig(name="dit", layers=1, heads=1, head_dim=12), 6, 0, torch.float64, CPU)
    model = session.prepare_model(module, "dit")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(Clips(), batch_size=3, collate_fn=list)
    return session, (model, optimizer), session.batches(loader, optimizer)


def test_zero_grad_wherever_people_put_it_changes_nothing() -> None:
    results = []
    for place in ("nowhere", "before backward", "after step"):
        session, (model, optimizer), batches = one_session()
        for batch in batches:
            if place == "before backward":
                optimizer.zero_grad()
            session.backward(batch.loss(model(batch)))
            assert session.step(optimizer)
            if place == "after step":
                optimizer.zero_grad()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_noise_and_clean_latents_come_apart_again() -> None:
    _, _, batches = one_session()
    batch = next(batches)
    rebuilt = (1 - batch.timestep) * batch.clean + batch.timestep * batch.noise
    torch.testing.assert_close(rebuilt, batch.tokens)
    torch.testing.assert_close(batch.noise - batch.clean, batch.target)
    assert float(batch.weight.sum()) == pytest.approx(1.0)


def test_a_loop_that_forgets_a_call_is_told() -> None:
    session, (model, optimizer), batches = one_session()
    with pytest.raises(ConfigError, match="outside of a batch"):
        session.step(optimizer)
    next(batches)
    with pytest.raises(ConfigError, match="without step"):
        next(batches)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="called twice"):
        session.prepare_model(model.module, "dit")
    session, (model, optimizer), batches = one_session()
    next(batches)
    with pytest.raises(ConfigError, match="another optimizer"):
        session.step(other)


def test_a_non_finite_loss_changes_no_weight_and_counts_the_step() -> None:
    session, (model, optimizer), batches = one_session()
    before = [p.detach().clone() for p in model.parameters()]
    batch = next(batches)
    session.backward(batch.loss(model(batch)) * float("nan"))
    assert session.step(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert next(batches).step == 2


def test_a_model_that_is_unknown_or_can_not_be_cut_is_refused_by_name() -> None:
    session = Session(Settings(), Seat("a", "n", 1), CPU, lambda a: None, None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ModelError, match="nearest"):
        session.prepare_model(torch.nn.Linear(1, 1), "wann")
    config = ModelConfig(name="sana", layers=1, heads=2, head_dim=16, mlp_ratio=2.5)
    with pytest.raises(ModelError, match=r"sana can't be cut over ranks.*policy='dp'"):
        session.prepare_model(get_adapter("sana").build(config, TEXT_DIM, 0, torch.float64, CPU), "sana")


class Pictures(Dataset[Any]):
    """Four pictures with captions, one of them empty, and a pooled vector each."""

    def __init__(self, channels: int, pooled: bool = True) -> None:
        self.channels, self.pooled = channels, pooled

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(i)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=g, dtype=torch.float64)

        sample = {"latents": drawn(self.channels, 1, 4 + 2 * i, 6), "text": drawn(i, TEXT_DIM)}
        return sample | ({"pooled": drawn(TEXT_DIM)} if self.pooled else {})


@pytest.fixture
def _double_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers' `.float()` would hide everything below 1e-7."""
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else x.to(torch.float32))


@pytest.mark.usefixtures("_double_casts")
@pytest.mark.parametrize("name", ["flux", "flux2", "qwen", "sd3", "hunyuan", "cogvideox"])
def test_joint_models_of_two_workers_have_one_workers_losses_and_weights(name: str) -> None:
    ratio = {"flux2": 3.0, "hunyuan": 2.0}.get(name, 4.0)
    config = ModelConfig(name=name, layers=1, heads=3, head_dim=16, mlp_ratio=ratio)
    pictures = Pictures(get_spec(name).latent_channels)
    alone = run("a", config=config, passes=1, dataset=pictures)
    world = run("ab", config=config, passes=1, dataset=pictures, policy="cp")
    for worker in "ab":
        same(world, worker, alone)


def test_a_pooled_vector_reaches_the_model_and_is_given_to_all_or_none() -> None:
    config = ModelConfig(name="flux", layers=1, heads=3, head_dim=16)
    losses = [run("a", config=config, passes=1, dataset=Pictures(16, p)).losses["a"][0][1] for p in (True, False)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-9)

    class Mixed(Pictures):
        def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
            sample = super().__getitem__(i)
            return sample if i else {k: v for k, v in sample.items() if k != "pooled"}

    with pytest.raises(DataError, match="sample 0 has no `pooled`"):
        run("a", config=config, passes=1, dataset=Mixed(16))


def test_outside_of_a_trainer_the_functions_say_what_is_missing() -> None:
    from zellige_ray.integrations import torch_trainer

    with pytest.raises(ConfigError, match="torch_config=ZelligeConfig"):
        torch_trainer.prepare_model(torch.nn.Linear(1, 1), "dit")


def test_what_a_lost_worker_will_cost_is_said_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from ray.train.backend import Backend

    from zellige_ray.integrations.torch_trainer import ZelligeConfig, limits

    def context(max_failures: int, elastic: bool = False) -> SimpleNamespace:
        run = SimpleNamespace(failure_config=SimpleNamespace(max_failures=max_failures))
        return SimpleNamespace(run_config=run, scaling_config=SimpleNamespace(elasticity_enabled=elastic))

    assert limits(context(-1), in_place=True) == []
    assert "max_failures is 0" in limits(context(0), in_place=True)[0]
    assert "in_place is False" in limits(context(-1), in_place=False)[0]
    assert "num_workers is a range" in limits(context(-1, elastic=True), in_place=True)[0]
    assert ZelligeConfig().backend_cls.has_replica_groups
    assert not ZelligeConfig(in_place=False).backend_cls.has_replica_groups
    monkeypatch.delattr(Backend, "has_replica_groups")
    assert "can't replace one worker" in limits(context(-1), in_place=True)[0]
