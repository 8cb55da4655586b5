"""What the page and the metrics cost a run: time taken from the driver's thread, and memory over 10,000 steps.

    python benchmarks/page_cost.py [--ranks 8] [--steps 10000] [--step-s 0.2]

A simulation's events go to a page with one watcher that reads them all, and with `--ray` to the Ray sink too. Figures:

1. hand-over: seconds in which the driver's thread is inside `see`, per step;
2. beside it: CPU seconds per step of page and sinks in their own threads, at one step per `--step-s`. It bounds what
   they can take from the driver's thread through the GIL, and is a reading that a busy machine does not change;
3. memory: resident size after 1,000 steps and after all of them, traced Python memory likewise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
import urllib.request
from pathlib import Path

from zellige_ray.monitor.events import StepEvent
from zellige_ray.monitor.page.access import Access
from zellige_ray.monitor.page.server import PageServer
from zellige_ray.monitor.page.state import About, PageState
from zellige_ray.monitor.simulation import Simulation
from zellige_ray.monitor.sinks import SinkRun, sinks
from zellige_ray.monitor.sinks.feed import Feed

REPEATS = 5


def watcher(url: str) -> subprocess.Popen[bytes]:
    """A browser's stand-in, in a process of its own: reads all server-sent events, and drops them."""
    script = f"import urllib.request\nfor line in urllib.request.urlopen({url + 'events'!r}, timeout=60): pass"
    return subprocess.Popen([sys.executable, "-c", script])


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Parts:
    """Page and sinks as a driver has them."""

    def __init__(self, ranks: int, use_ray: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.simulation = Simulation(Path(self.folder.name) / "simulation", ranks, steps=100)
        about = About("simulation", self.simulation.folder, 10_000, "wan", "zellige")
        self.state = PageState(about)
        self.page = PageServer(self.state, Access(None, "127.0.0.1"), self.simulation.model)
        self.url = f"http://127.0.0.1:{self.page.start('127.0.0.1', 0)[1]}/"
        assert self.page.wait_ready(30)
        self.feed = Feed(SinkRun("simulation", self.simulation.folder), {"ray": sinks["ray"]} if use_ray else {})
        events = list(self.simulation.events())
        self.steps = [e for e in events if isinstance(e, StepEvent)]
        for event in events:
            if not isinstance(event, StepEvent):
                self.see(event)

    def see(self, event: object) -> None:
        self.page.see(event)  # type: ignore[arg-type]
        self.feed.see(event)  # type: ignore[arg-type]

    def step(self, number: int) -> StepEvent:
        return dataclasses.replace(self.steps[number % len(self.steps)], step=number)

    def close(self) -> None:
        self.feed.close()
        self.page.close()
        self.folder.cleanup()


def others_s(parts: Parts, steps: int, step_s: float, first: int) -> list[float]:
    """CPU seconds per step of all threads but this one, REPEATS times over `steps` steps."""
    out = []
    for repeat in range(REPEATS):
        before = time.process_time() - time.thread_time()
        for k in range(steps):
            parts.see(parts.step(first + repeat * steps + k))
            time.sleep(step_s)
        out.append((time.process_time() - time.thread_time() - before) / steps)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--step-s", type=float, default=0.2)
    parser.add_argument("--ray", action="store_true", help="with the Ray sink, on a Ray of its own")
    args = parser.parse_args()
    if args.ray:
        import ray

        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    parts = Parts(args.ranks, args.ray)
    reader = watcher(parts.url)
    time.sleep(1.0)
    beside = others_s(parts, round(4.0 / args.step_s), args.step_s, 1)
    beside_s = statistics.median(beside)

    seconds = []
    marks: list[tuple[int, int]] = []
    tracemalloc.start()
    for number in range(10_000, 10_000 + args.steps):
        event = parts.step(number)
        start = time.perf_counter()
        parts.see(event)
        seconds.append(time.perf_counter() - start)
        time.sleep(0.002)
        if number - 10_000 in (args.steps // 10, args.steps - 1):
            marks.append((rss_bytes(), tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    hand_over_s = statistics.median(seconds)
    (rss_1, traced_1), (rss_2, traced_2) = marks
    with urllib.request.urlopen(f"{parts.url}state.json", timeout=60) as answer:
        body = answer.read()
    print(json.dumps({
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "ranks": args.ranks, "steps": args.steps, "step_s": args.step_s, "ray_sink": args.ray, "watchers": 1,
        "hand_over_us": round(1e6 * hand_over_s, 1),
        "hand_over_us_p99": round(1e6 * sorted(seconds)[int(0.99 * len(seconds))], 1),
        "hand_over_share_of_step": hand_over_s / args.step_s,
        "beside_us": round(1e6 * beside_s, 1),
        "beside_us_spread": [round(1e6 * x, 1) for x in (min(beside), max(beside))],
        "all_share_of_step": (hand_over_s + beside_s) / args.step_s,
        "message_bytes": len(json.dumps(parts.state.step())),
        "state_json_bytes": len(body), "kept_steps": parts.state.num_steps,
        "rss_mib_after_a_tenth": rss_1 / 2**20, "rss_mib_after_all": rss_2 / 2**20,
        "traced_mib_after_a_tenth": traced_1 / 2**20, "traced_mib_after_all": traced_2 / 2**20,
    }, indent=1))  # fmt: skip
    parts.close()
    reader.wait(60)


if __name__ == "__main__":
    main()
