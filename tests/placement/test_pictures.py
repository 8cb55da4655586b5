"""Segments, mosaic and trace say what the timeline says."""

from __future__ import annotations

import itertools

import pytest

from zellige_ray.monitor.mosaic import mosaic_figure, mosaic_picture
from zellige_ray.monitor.trace import chrome_trace
from zellige_ray.placement import make_plan
from zellige_ray.placement.segments import plan_segments
from zellige_ray.placement.workloads import draw_batch


@pytest.fixture(scope="module")
def scene(flux32):
    cluster = flux32.hardware.cluster()
    return make_plan(draw_batch("knap-joint", 32, 0), cluster, flux32), cluster, flux32


def test_segments_of_a_rank_add_up_to_its_load_and_never_overlap(scene):
    plan, cluster, cost = scene
    segments, ends = plan_segments(plan, cluster, cost)
    assert ends[-1] == pytest.approx(plan.predicted.step_s)
    for x in plan.predicted.ranks:
        mine = [s for s in segments if s.rank == x.rank and s.kind != "flight"]
        total = {
            kind: sum(s.stop_s - s.start_s for s in mine if s.kind == kind)
            for kind in ("linear", "attention", "exchange")
        }
        assert total["linear"] == pytest.approx(x.linear_s)
        assert total["attention"] == pytest.approx(x.attention_s)
        assert total["exchange"] == pytest.approx(x.exchange_s, abs=1e-9)
        for a, b in itertools.pairwise(mine):
            assert a.stop_s <= b.start_s + 1e-9
        assert mine[-1].stop_s <= ends[-1] * (1 + 1e-9)


def test_the_mosaic_is_drawn_as_svg_and_png(scene):
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        assert mosaic_picture(*scene, ending).startswith(start)


def test_the_mosaic_names_ranks_nodes_bound_and_anchors(scene):
    figure = mosaic_figure(*scene)
    axes = figure.axes[0]
    words = " ".join(t.get_text() for t in axes.texts) + axes.get_title(loc="left")
    assert "lower bound" in words and "node 3" in words and "over the bound" in words
    assert len(axes.get_yticklabels()) == 32


def test_the_mosaic_of_rounds_and_of_one_rank_is_drawn(flux16, flux32):
    cluster = flux32.hardware.cluster()
    plan = make_plan(draw_batch("wan-tail", 64, 0), cluster, flux32)
    assert len(plan.rounds) > 1
    mosaic_figure(plan, cluster, flux32)


def test_the_trace_has_a_thread_per_rank_and_microseconds(scene):
    trace = chrome_trace(*scene)
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["tid"] // 2 for e in spans} == set(range(32))
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(scene[0].predicted.step_s * 1e6)
    assert {"linear", "attention", "exchange", "flight"} >= {e["cat"] for e in spans}
