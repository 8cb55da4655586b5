"""Exchanges of two ranks with a core each: threads that move bytes as the engine starts them, and with usual policy.

A rank computes for one to six milliseconds, then exchanges with the other; each exchange is timed from the moment that
both have begun it. The two ways take turns within the same processes, since a thread's policy may be changed. Needs
Linux and two cores. One table; `--json` for one object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from zellige_ray.attention.comm import Comm

ROWS, WIDTH = (256, 4096), 32  # float32
WAYS = {"polite": "SCHED_BATCH", "usual": "SCHED_OTHER"}
WAIT_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", type=int, default=100, help="of each size, way and turn (default: 100)")
    parser.add_argument("--turns", type=int, default=5, help="default: 5")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="zellige-polite-") as scratch:
        answers = context.Queue()
        ranks = [
            context.Process(
                target=_rank,
                args=(r, str(Path(scratch) / "store"), args.exchanges, args.turns, answers),
                daemon=True,
            )
            for r in (0, 1)
        ]
        for rank in ranks:
            rank.start()
        times = dict(answers.get(timeout=WAIT_S) for _ in ranks)
        for rank in ranks:
            rank.join(WAIT_S)
    figures = [_figures(way, rows, times) for rows in ROWS for way in WAYS]
    if args.json:
        sys.stdout.write(json.dumps({"exchanges": figures}) + "\n")
        return 0
    print("threads   bytes each way   median ms   mean ms   95 of 100 within ms   means of turns, ms")
    for f in figures:
        print(
            f"{f['threads']:<9} {f['bytes']:>14} {f['median_ms']:>11.2f} {f['mean_ms']:>9.2f} {f['p95_ms']:>21.2f}   "
            f"{min(f['turns_ms']):.2f} to {max(f['turns_ms']):.2f}"
        )
    return 0


def _rank(rank: int, store: str, exchanges: int, turns: int, answers: Any) -> None:
    from torch.distributed import FileStore

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    before = set(Path("/proc/self/task").iterdir())
    comm = Comm.create(FileStore(store, 2), 0, rank, 2)
    helpers = [int(task.name) for task in Path("/proc/self/task").iterdir() if task not in before]
    times: dict[tuple[str, int], list[list[tuple[float, float]]]] = {}
    rng, operand = random.Random(0), torch.rand(256, 256)
    for turn in range(turns + 1):  # the first one warms up
        for rows in ROWS:
            for way, policy in WAYS.items():
                for thread in helpers:
                    os.sched_setscheduler(thread, getattr(os, policy), os.sched_param(0))
                taken = [
                    _exchange(comm, rows, [rng.choice((2, 4, 12)) for _ in (0, 1)], operand, i)
                    for i in range(exchanges)
                ]
                if turn:
                    times.setdefault((way, rows), []).append(taken)
    answers.put((rank, times))
    comm.barrier()


def _exchange(comm: Comm, rows: int, products: list[int], operand: torch.Tensor, key: int) -> tuple[float, float]:
    """When it began and when it was over."""
    for _ in range(products[comm.rank]):
        torch.mm(operand, operand)
    peer, send = 1 - comm.rank, torch.full((rows, WIDTH), 0.5)
    began = time.monotonic()
    comm.exchange(send, {peer: rows}, {peer: rows}, key).wait()
    return began, time.monotonic()


def _figures(
    way: str, rows: int, times: dict[int, dict[tuple[str, int], list[list[tuple[float, float]]]]]
) -> dict[str, Any]:
    turns = [
        [1e3 * (max(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(one, other, strict=True)]
        for one, other in zip(times[0][way, rows], times[1][way, rows], strict=True)
    ]
    every = sorted(x for turn in turns for x in turn)
    return {
        "threads": way,
        "bytes": 4 * WIDTH * rows,
        "median_ms": statistics.median(every),
        "mean_ms": statistics.fmean(every),
        "p95_ms": every[int(0.95 * len(every))],
        "turns_ms": [statistics.fmean(turn) for turn in turns],
    }


if __name__ == "__main__":
    sys.exit(main())
