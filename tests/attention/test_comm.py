"""Communicators: cancel, time-out, dead and missing peers, new epochs, late components, conflicting orders."""

from __future__ import annotations

import datetime
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch.distributed import HashStore, TCPStore

from zellige_ray.attention import AttentionEngine, Comm, compile_layout
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.attention.tilings import random_round
from zellige_ray.errors import CommError, Regroup
from zellige_ray.placement.plan import Round

pytestmark = pytest.mark.dist


def outcome(fn):
    """(what was raised, seconds)."""
    began = time.monotonic()
    try:
        fn()
    except Exception as fault:  # noqa: BLE001
        return fault, time.monotonic() - began
    return None, time.monotonic() - began


def pair_round(pairs, length=24, heads=4):
    """One sequence per pair of ranks: tokens halved, heads halved."""
    shards, tiles = [], []
    for s, (a, b) in enumerate(pairs):
        half = length // 2
        shards += [(s, a, 0, half), (s, b, half, length)]
        tiles += [(s, a, 0, heads // 2, 0, length), (s, b, heads // 2, heads, 0, length)]
    return Round(
        ids=tuple(f"s{i}" for i in range(len(pairs))),
        tokens_S=np.array([length] * len(pairs)),
        text_tokens_S=np.zeros(len(pairs), dtype=np.int64),
        shards_K4=np.array(sorted(shards)),
        tiles_M6=np.array(sorted(tiles)),
    )


def attend(engine, heads=4, dim=8):
    q = torch.randn(engine.layout.num_tokens, heads, dim)
    return engine.attend(q, q, q)


@pytest.mark.parametrize("operation", ["exchange", "all_reduce"])
def test_cancel_frees_those_who_wait_for_a_peer_that_never_comes_and_a_new_epoch_works(operation):
    store = HashStore()
    comms, left = {}, {}
    ready = threading.Barrier(4)

    def body(rank):
        comm = comms[rank] = Comm.create(store, 0, rank, 3, "gloo", timeout_s=8)
        ready.wait()
        if rank == 2:
            return
        tensor = torch.ones(4, 2)
        wait = (
            comm.exchange(tensor, {2: 4}, {2: 4}, 0).wait if operation == "exchange" else comm.all_reduce(tensor).wait
        )
        left[rank] = (*outcome(wait), time.monotonic())

    threads = [threading.Thread(target=body, args=(r,)) for r in range(3)]
    for t in threads:
        t.start()
    ready.wait()
    time.sleep(0.3)
    assert not left
    cancelled = time.monotonic()
    for comm in comms.values():
        comm.cancel()
    for t in threads:
        t.join()
    for fault, _, at in left.values():
        assert isinstance(fault, Regroup)
        assert at - cancelled < 0.1
    closing = time.monotonic()
    for comm in comms.values():
        comm.close()
    assert time.monotonic() - closing < 0.1
    sums = run_ranks(
        2, lambda rank, comm: comm.all_reduce(torch.tensor([rank + 1.0])).wait().item(), store=store, epoch=1
    )
    assert sums == [3.0, 3.0]


def test_a_peer_that_never_sends_is_a_comm_error_that_names_it_after_the_time_out():
    def body(rank, comm):
        if rank == 1:
            time.sleep(1.2)
            return None
        return outcome(comm.exchange(torch.ones(4, 2), {1: 4}, {1: 4}, 7).wait)

    fault, seconds = run_ranks(2, body, timeout_s=0.5)[0]
    assert isinstance(fault, CommError) and not isinstance(fault, Regroup)
    assert "ranks [1]" in str(fault) and "0.5 s" in str(fault)
    assert seconds < 1.1


def test_a_peer_whose_group_dies_is_a_comm_error():
    """The peer's sockets close, as they do when its process is killed."""
    import gc

    def body(rank, comm):
        comm.barrier()  # both are connected
        if rank == 1:
            comm._group = comm._pool = None
            gc.collect()
            time.sleep(1.0)
            return None
        time.sleep(0.2)
        return outcome(comm.exchange(torch.ones(4, 2), {1: 4}, {1: 4}, 7).wait)

    fault, seconds = run_ranks(2, body, timeout_s=5)[0]
    assert isinstance(fault, CommError)
    assert seconds < 2.0


def test_members_that_do_not_come_are_named():
    fault, seconds = outcome(lambda: Comm.create(HashStore(), 0, 0, 3, "gloo", timeout_s=0.3))
    assert isinstance(fault, CommError) and "[1, 2]" in str(fault)
    assert seconds < 1.0


def test_creation_leaves_when_cancelled():
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    fault, seconds = outcome(lambda: Comm.create(HashStore(), 0, 0, 2, "gloo", timeout_s=20, cancelled=stop.is_set))
    assert isinstance(fault, Regroup)
    assert seconds < 0.5


def test_a_closed_or_cancelled_communicator_refuses():
    comm = Comm.create(HashStore(), 3, 0, 1)
    assert comm.all_reduce(torch.ones(1)).wait().item() == 1
    comm.close()
    with pytest.raises(Regroup, match="epoch 3"):
        comm.all_reduce(torch.ones(1))


def test_a_rank_that_exchanges_nothing_leaves_a_cancelled_epoch_between_two_layers():
    round_ = Round(("s",), np.array([5]), np.array([0]), np.array([[0, 0, 0, 5]]), np.array([[0, 0, 0, 2, 0, 5]]))
    comm = Comm.create(HashStore(), 4, 0, 1)
    engine = AttentionEngine(compile_layout(round_, 0, 2), comm)
    x = torch.randn(5, 2, 4, requires_grad=True)
    out = engine.attend(x, x, x)
    comm.cancel()
    with pytest.raises(Regroup, match="epoch 4"):
        engine.attend(x, x, x)
    with pytest.raises(Regroup, match="epoch 4"):
        out.sum().backward()


def test_over_a_tcp_store_too():
    store = TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=10), wait_for_workers=False)
    assert (
        run_ranks(3, lambda rank, comm: comm.all_reduce(torch.ones(1) * rank, "max").wait().item(), store=store)
        == [2.0] * 3
    )


@pytest.mark.parametrize("transport", ["p2p", "group"])
def test_a_late_component_does_not_delay_another(transport):
    round_ = pair_round([(0, 1), (2, 3)])

    def body(rank, comm):
        engine = AttentionEngine(compile_layout(round_, rank, 4), comm, transport=transport)
        if rank == 2:
            time.sleep(1.0)
        return outcome(lambda: attend(engine))[1]

    seconds = run_ranks(4, body)
    assert max(seconds[:2]) < 0.5
    assert seconds[3] > 0.5


def test_world_transport_couples_all_ranks():
    round_ = pair_round([(0, 1)])

    def body(rank, comm):
        engine = AttentionEngine(compile_layout(round_, rank, 4), comm, transport="world")
        if rank == 2:
            time.sleep(0.5)
        return outcome(lambda: attend(engine))[1]

    assert max(run_ranks(3, body)[:2]) > 0.3


def test_overlapping_groups_over_rounds_stay_bounded_and_agree_on_every_rank():
    """Components overlap from round to round and come back after they were dropped; the pool holds two."""
    orders = [
        [(0, 1), (2, 3)],
        [(1, 2), (3, 0)],
        [(0, 2), (1, 3)],
        [(0, 1), (2, 3)],
        [(1, 2)],
        [(0, 1)],
        [(3, 0), (1, 2)],
    ]
    store = HashStore()
    sizes = []

    def body(rank):
        comm = Comm.create(store, 0, rank, 4, timeout_s=20, max_groups=2)
        for pairs in orders:
            engine = AttentionEngine(compile_layout(pair_round(pairs), rank, 4), comm, transport="group")
            q = torch.randn(engine.layout.num_tokens, 4, 8, requires_grad=True)
            engine.attend(q, q, q).sum().backward()
            sizes.append(len(comm._pool))
        comm.close()

    threads = [threading.Thread(target=body, args=(r,)) for r in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
        assert not t.is_alive()
    assert len(sizes) == 4 * len(orders) and max(sizes) <= 2


def test_posting_exchanges_in_conflicting_orders_does_not_deadlock():
    """Three ranks, three pairs, each rank starts its two exchanges in another order and waits in yet another."""

    def body(rank, comm):
        others = [r for r in range(3) if r != rank]
        order = others if rank % 2 else others[::-1]
        keys = {frozenset(p): i for i, p in enumerate([(0, 1), (1, 2), (0, 2)])}
        pending = {
            r: comm.exchange(torch.full((2, 2), float(rank)), {r: 2}, {r: 2}, keys[frozenset((rank, r))]) for r in order
        }
        return [float(pending[r].wait()[0, 0]) for r in reversed(order)] == [float(r) for r in reversed(order)]

    assert run_ranks(3, body, timeout_s=5) == [True] * 3


def test_random_rounds_back_to_back_reuse_keys_safely():
    rng = np.random.default_rng(0)
    rounds = [random_round(rng, [9, 30, 14], 4, 4) for _ in range(6)]

    def body(rank, comm):
        for round_ in rounds:
            attend(AttentionEngine(compile_layout(round_, rank, 4), comm))
        return True

    assert run_ranks(4, body, timeout_s=10) == [True] * 4


def test_a_process_that_closed_its_communicators_exits_cleanly():
    """A group that is being released when the interpreter ends must not abort it."""
    code = (
        "import torch; from zellige_ray.attention.rehearsal import run_ranks;"
        "print(run_ranks(3, lambda r, c: c.all_reduce(torch.ones(1)).wait().item()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[3.0, 3.0, 3.0]"), done.stderr
