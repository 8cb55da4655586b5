"""Live bytes: every storage once, until it dies; the attention layer's buffers by formula against the count."""

from __future__ import annotations

import gc
import mmap
import threading

import numpy as np
import pytest
import torch

from zellige_ray.attention import AttentionEngine, compile_layout
from zellige_ray.attention.buffers import LayerBuffers
from zellige_ray.attention.rehearsal import run_ranks
from zellige_ray.attention.tilings import random_round
from zellige_ray.placement.memory import COUNTS, FEW, count_more
from zellige_ray.placement.traffic import measure_traffic
from zellige_ray.training.live_bytes import CpuLiveBytes, ProcessPeak, resident_bytes

HEADS, HEAD_DIM = 6, 32


def test_views_count_once_and_the_dead_not_at_all():
    with CpuLiveBytes() as live:
        x = torch.zeros(1000)
        view = x.view(10, 100)[3:]
        assert live.now == 4000
        y = x + 1
        assert (live.now, live.peak) == (8000, 8000)
        del x, y
        assert live.now == 4000
        del view
        assert (live.now, live.peak) == (0, 8000)


def test_what_was_there_before_counts_when_it_is_given_or_touched():
    given, touched = torch.zeros(10), torch.from_numpy(np.zeros(100))
    with CpuLiveBytes([given, given[:5]]) as live:
        assert live.now == 40
        touched.sum()
        assert live.now == 840
        del given
        assert live.now == 800


def test_saved_tensors_live_until_backward_and_a_lap_has_its_own_peak():
    x = torch.zeros(1000, requires_grad=True)
    with CpuLiveBytes([x]) as live:
        y = x.exp()
        loss = (y * y).sum()
        del y
        assert live.now == pytest.approx(8000, abs=64)
        first = live.lap()
        loss.backward()
        del loss
        assert live.lap() > first - 4000
        assert live.now == pytest.approx(8000, abs=64)  # x and its gradient
    assert live.peak >= 12000


def test_a_storage_that_another_thread_drops_is_noticed():
    held = [torch.zeros(1000)]
    with CpuLiveBytes(held) as live:
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        gc.collect()
        assert live.now == 0


def test_resized_storages_count_as_they_are():
    with CpuLiveBytes() as live:
        x = torch.zeros(1000)
        x.resize_(2000)
        assert live.now == 8000
        x.untyped_storage().resize_(0)
        x.detach()
        assert live.now == 0


def test_the_process_has_a_peak_that_can_be_forgotten():
    peak = ProcessPeak()
    peak.restart()
    with mmap.mmap(-1, 32 << 20) as fresh:  # an allocator may have pages to give that are resident already
        fresh.write(b"1" * (32 << 20))
        assert peak.read() >= peak.base + (24 << 20)
    assert resident_bytes() > 10 << 20


@pytest.mark.parametrize("seed", range(8))
def test_the_buffers_of_a_layer_are_what_the_formula_says(seed):
    """Whole sequences, cut ones, both, ranks without tokens: at the fullest moment of backward, within 1 %.

    Sends live until their exchange is over, which is the peer's to say: between none of them and all.
    """
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(20, 300, 5)]
    round_ = random_round(rng, lengths, 2, HEADS)
    counts = np.concatenate(
        [np.zeros((FEW, 2)), count_more(round_, measure_traffic(round_, np.zeros(2, dtype=np.int64), 1), 2)]
    )
    formula = LayerBuffers(HEADS, 4 * HEAD_DIM, 4)

    def body(rank, comm):
        layout = compile_layout(round_, rank, HEADS)
        counts[:2, rank] = 1, layout.num_tokens
        q, k, v = (torch.randn(layout.num_tokens, HEADS, HEAD_DIM, requires_grad=True) for _ in range(3))
        with CpuLiveBytes() as live:
            out = AttentionEngine(layout, comm).attend(q, k, v)
            kept, grad = live.now, torch.ones_like(out)
            comm.barrier()
            entry = live.now
            live.lap()
            torch.autograd.backward(out, grad)
            return kept, entry, live.lap()

    row = HEADS * HEAD_DIM * 4
    for rank, (kept, entry, peak) in enumerate(run_ranks(2, body)):
        of = dict(zip(COUNTS, counts[:, rank].tolist(), strict=True))
        saved = sum(of[c] * b for c, b in (formula.kept() | formula.units()).items())
        inputs = 3 * of["tokens"] * row
        # the caller holds q, k, v here: they are kept twice where whole and cut sequences share a rank
        copied = 0 if of["whole_tokens"] in (0, of["tokens"]) else 3 * of["whole_tokens"] * row
        alone = saved - of["whole_tokens"] * 3 * row + copied + inputs + of["tokens"] * row
        assert kept == pytest.approx(alone, rel=0.002, abs=64)
        latest, soonest = (
            max(np.dot(m.row, counts[:, rank] * alive) for m in formula.backward())
            for alive in (np.ones(len(COUNTS)), np.array([c != "sent_in_rows" for c in COUNTS]))
        )
        assert (entry + soonest) * 0.99 - 2048 <= peak <= (entry + latest) * 1.01 + 2048
