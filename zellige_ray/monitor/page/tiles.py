"""Tiles: the newest plan of a run folder as plain columns that a browser draws as the mosaic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zellige_ray.errors import ZelligeError
from zellige_ray.monitor import run_folder
from zellige_ray.monitor.mosaic import ANCHORS, FILLERS
from zellige_ray.monitor.plan_pictures import plan_cluster, plan_words
from zellige_ray.placement import CostModel, ModelPreset, Plan, load_hardware, plan_from_json
from zellige_ray.placement.segments import plan_segments

KINDS = ("linear", "attention", "exchange", "flight")
SCALE = 10_000  # times are whole numbers of this part of the step


def newest_tiles(folder: Path, step: int, model: ModelPreset | None) -> dict[str, Any]:
    """The plan of `step`, or of the one before while that is not written; `{"none": reason}` where there is none."""
    if model is None or not (folder / run_folder.HARDWARE).is_file():
        return {"none": "the rates that plans are made with are not known yet"}
    for number in (step, step - 1):
        path = folder / run_folder.PLANS / f"step-{number:06d}.json"
        try:
            plan = plan_from_json(json.loads(path.read_text(encoding="utf-8")))
            return {"step": number, **plan_tiles(plan, CostModel(load_hardware(folder / run_folder.HARDWARE), model))}
        except (OSError, ValueError, ZelligeError):
            continue  # not written yet, or being written
    return {"none": f"the plan of step {step} is not in the run folder"}


def plan_tiles(plan: Plan, cost: CostModel) -> dict[str, Any]:
    """Columns of segments; times from 0 to SCALE, kinds as indices of KINDS, sequences as indices or -1."""
    cluster = plan_cluster(cost.hardware, plan)
    segments, ends = plan_segments(plan, cluster, cost)
    end_s = ends[-1] or 1.0
    cut = {s.sequence for s in segments if s.sequence and not s.whole}
    tokens = {i: n for r in plan.rounds for i, n in zip(r.ids, r.tokens_S.tolist(), strict=True)}
    number = {name: k for k, name in enumerate(tokens)}
    colours: dict[str, str] = {}
    for glazes, names in ((ANCHORS, [i for i in tokens if i in cut]), (FILLERS, [i for i in tokens if i not in cut])):
        colours |= {name: glazes[k % len(glazes)] for k, name in enumerate(names)}
    order = [rank for ranks in cluster.ranks_by_node() for rank in ranks]
    row = {rank: k for k, rank in enumerate(order)}
    predicted = plan.predicted
    return {
        "hash": plan.hash,
        "words": plan_words(plan),
        "end_s": end_s,
        "bound_s": None if predicted is None else predicted.lower_bound_s,
        "policy": plan.policy,
        "ranks": order,
        "nodes": [cluster.node_of_rank[rank] for rank in order],
        "rounds": [round(SCALE * end / end_s) for end in ends],
        "sequences": {
            "id": list(tokens),
            "tokens": list(tokens.values()),
            "cut": [int(name in cut) for name in tokens],
            "colour": [colours[name] for name in tokens],
        },
        "row": [row[s.rank] for s in segments],
        "start": [round(SCALE * s.start_s / end_s) for s in segments],
        "stop": [round(SCALE * s.stop_s / end_s) for s in segments],
        "kind": [KINDS.index(s.kind) for s in segments],
        "sequence": [number.get(s.sequence, -1) for s in segments],
    }
