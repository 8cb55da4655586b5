"""A process of its own that runs a simulation on a Ray of its own and exports its metrics, until its stdin is closed.

Arguments: folder for everything, port of the metrics. Prints `ready` when the simulation has ended.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main(folder: Path, port: int) -> None:
    import ray

    from zellige_ray.monitor.events import NoteEvent
    from zellige_ray.monitor.simulation import Simulation
    from zellige_ray.monitor.sinks import SinkRun, sinks
    from zellige_ray.monitor.sinks.feed import Feed

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(folder / "r"),
        _node_ip_address="127.0.0.1",
        _metrics_export_port=port,
        _system_config={"metrics_report_interval_ms": 1000},
    )
    simulation = Simulation(folder / "simulation", 4, steps=40, lost_at=20)
    feed = Feed(SinkRun("simulation", simulation.folder), {"ray": sinks["ray"]}, interval_s=0.1)
    feed.see(NoteEvent("warning", "a warning to count"))
    for event in simulation.events():
        feed.see(event)
        time.sleep(0.05)
    feed.close()
    faults = feed.warnings()
    print(faults or "ready", flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
