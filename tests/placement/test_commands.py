"""The commands plan, simulate and bench as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zellige_ray.cli import main
from zellige_ray.placement import load_hardware, plan_from_json
from zellige_ray.placement.workloads import draw_batch


@pytest.fixture
def batch(tmp_path):
    rows = draw_batch("knap-joint", 16, 0)
    text = "".join(json.dumps({"id": s.id, "tokens": s.tokens, "text_tokens": s.text_tokens}) + "\n" for s in rows)
    (tmp_path / "b.jsonl").write_text(text)
    return str(tmp_path / "b.jsonl")


def plan(*more: str) -> int:
    return main(["plan", "--hardware", "a800-16", "--model", "flux", *more])


def test_plan_prints_a_line_per_rank_and_the_verdict(batch, capsys):
    assert plan("--batch", batch) == 0
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if line.strip().endswith("GiB")]) == 16
    assert "lower bound" in out and "gap" in out and "planned in" in out and "hash" in out


def test_plan_writes_plan_picture_and_trace_and_prints_json(batch, capsys, tmp_path):
    files = [str(tmp_path / name) for name in ("plan.json", "p.svg", "t.json")]
    assert plan("--batch", batch, "--out", files[0], "--picture", files[1], "--trace", files[2], "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    written = plan_from_json(json.loads((tmp_path / "plan.json").read_text()))
    assert written.hash == figures["hash"] and len(figures["ranks"]) == 16
    assert "<svg" in (tmp_path / "p.svg").read_text()[:600]
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--policy", "zelige"], "nearest is 'zellige'"),
        (["--picture", "x.gif"], "must be one of .svg, .png"),
        (["--picture", "nowhere/x.svg"], "--picture nowhere/x.svg: the folder nowhere does not exist"),
        (["--trace", "."], "--trace .: it is a folder"),
        (["--policy", "bags:g5n1"], "must divide the 16 ranks"),
    ],
)
def test_bad_arguments_exit_with_2_and_write_nothing(batch, capsys, tmp_path, arguments, match):
    out = tmp_path / "plan.json"
    assert plan("--batch", batch, "--out", str(out), *arguments) == 2
    assert match in capsys.readouterr().err and not out.exists()


def test_options_and_words_come_in_any_order(capsys):
    words = ["data.source=nowhere", "--hardware", "a800-16", "steps=7"]
    assert main(["plan", "mini", "--json", *words, "--batches", "2", "stepz=3"]) == 2
    assert "stepz: unknown key, the nearest known one is steps" in capsys.readouterr().err


def test_an_output_that_is_an_input_is_refused_and_the_input_stays(batch, capsys, tmp_path):
    before = Path(batch).read_bytes()
    (tmp_path / "link.json").symlink_to(batch)
    for out in (batch, str(tmp_path / "link.json"), str(tmp_path / ".." / tmp_path.name / "b.jsonl")):
        assert plan("--batch", batch, "--out", out) == 2
        assert f"--out {out}: the command reads this file" in capsys.readouterr().err
    picture = str(tmp_path / "p.svg")
    Path(picture).write_text('{"id": "a", "tokens": 9}\n')
    words = ["simulate", "--workload", batch, picture, "--hardware", "a800-16", "--model", "flux"]
    assert main([*words, "--picture", picture]) == 2
    assert "--picture" in capsys.readouterr().err
    assert Path(batch).read_bytes() == before


def test_two_outputs_are_not_one_file(batch, capsys, tmp_path):
    one = str(tmp_path / "one.json")
    assert plan("--batch", batch, "--out", one, "--trace", one) == 2
    assert f"--trace {one}: --out is the same file" in capsys.readouterr().err
    assert plan("--batch", batch, "--out", "/dev/null", "--trace", "/dev/null") == 0


def test_a_disk_that_refuses_is_a_named_error_and_the_device_stays_one(batch, capsys):
    assert plan("--batch", batch, "--out", "/dev/full") == 1
    assert "error: --out /dev/full: it can't be written: No space left on device" in capsys.readouterr().err
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"id": "a", "tokens": 0}\n', "tokens 0"),
        ('{"id": "a", "tokens": 5}\n{"id": "a", "tokens": 5}\n', "occurs twice"),
        ('{"id": "a"}\n', "line 1: a row needs the keys id and tokens"),
        ('{"id": "a", "tokens": 5, "token": 1}\n', "unknown key 'token'"),
        ("nonsense\n", "line 1: not JSON"),
        ('{"id": "a", "tokens": 5, "weight": "x"}\n', "line 1: weight is 'x'"),
        ('{"id": "a", "tokens": 5, "weight": null}\n', "line 1: weight is None"),
        ('{"id": "a", "tokens": 5}\n{"id": "b", "tokens": 5, "weight": NaN}\n', "line 2: weight is nan"),
        ('{"id": "a", "tokens": 5, "weight": -1}\n', "finite number of at least 0"),
        ('{"id": null, "tokens": 5}\n', "line 1: id is None"),
        ('{"id": "", "tokens": 5}\n', "line 1: id is ''"),
        ('{"id": "a", "tokens": 99999999999999999999}\n', "at most 1099511627776"),
        ('{"id": "a", "tokens": 5, "weight": 1' + "0" * 400 + "}\n", "line 1: weight is 1000"),
        ('{"id": "a", "tokens": 1' + "0" * 400 + "}\n", "at most 1099511627776"),
        ('{"id": "\\ud83d", "tokens": 5}\n', "line 1: not JSON: it holds half of a character"),
        ("[" * 100_000 + "\n", "line 1: not JSON: it is nested too deeply"),
        ("", "0 sequences"),
    ],
)
def test_bad_batch_files_exit_with_2_and_name_the_line(tmp_path, capsys, text, match):
    (tmp_path / "b.jsonl").write_text(text)
    assert plan("--batch", str(tmp_path / "b.jsonl")) == 2
    assert match in capsys.readouterr().err


def test_a_line_separator_inside_of_an_id_ends_no_row(tmp_path, capsys):
    (tmp_path / "b.jsonl").write_text('{"id": "a\u2028b", "tokens": 5, "weight": 0}\r\n{"id": 7, "tokens": 5}\n')
    assert plan("--batch", str(tmp_path / "b.jsonl"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["sequences"] == 2


def test_more_ranks_than_can_be_planned_are_named(batch, tmp_path, capsys):
    rows = load_hardware("a800-16").to_dict() | {"nodes": 10**9}
    (tmp_path / "mine.yaml").write_text("\n".join(f"{k}: {v}" for k, v in rows.items()))
    assert main(["plan", "--batch", batch, "--hardware", str(tmp_path / "mine.yaml"), "--model", "flux"]) == 2
    assert "at most 131072 can be planned" in capsys.readouterr().err


def test_a_missing_file_exits_with_2(capsys):
    assert plan("--batch", "nowhere.jsonl") == 2
    assert "cannot read batch nowhere.jsonl" in capsys.readouterr().err


def test_simulate_compares_policies_over_a_stream(capsys, tmp_path):
    picture = tmp_path / "c.png"
    words = ["--workload", "two-point", "--hardware", "a800-16", "--model", "flux", "--batches", "2", "--seed", "5"]
    more = ["--policies", "zellige,dp,bags:best-static", "--json", "--picture", str(picture)]
    assert main(["simulate", *words, *more]) == 0
    out = json.loads(capsys.readouterr().out)
    rows = {row["policy"]: row for row in out["policies"]}
    assert out["baseline"] == "bags:best-static" and rows["bags:best-static"]["ratio"] == 1
    assert rows["zellige"]["ratio"] >= 1 and rows["zellige"]["gap"] >= 0
    assert rows["bags:best-static"]["resolved"].startswith("bags:g")
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_simulate_reads_batch_files_and_reports_policies_that_cannot_place_them(batch, capsys, tmp_path):
    (tmp_path / "long.jsonl").write_text('{"id": "a", "tokens": 400000}\n')
    words = ["--hardware", "a800-16", "--model", "flux", "--policies", "zellige,dp"]
    assert main(["simulate", "--workload", batch, str(tmp_path / "long.jsonl"), *words]) == 0
    assert "can't place the stream: policy dp" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (["--batches", "0"], "must be at least 1"),
        (["--policies", "zellige,dpp"], "nearest is 'dp'"),
        (["--policies", ","], "empty"),
        (["--seed", "-1"], "--seed is -1"),
        (["--picture", "x.gif"], "must be one of .svg, .png"),
        (["--picture", "nowhere/x.png"], "the folder nowhere does not exist"),
        (["--baseline", "cp", "--policies", "dp"], "not among"),
    ],
)
def test_simulate_refuses_bad_arguments(capsys, more, match):
    words = ["simulate", "--workload", "few", "--hardware", "a800-16", "--model", "flux"]
    assert main([*words, *more]) == 2
    assert match in capsys.readouterr().err


def test_bench_names_the_nearest_benchmark_and_lists_arguments(capsys):
    assert main(["bench", "planer"]) == 2
    assert "nearest is 'planner'" in capsys.readouterr().err


@pytest.mark.slow
def test_bench_planner_prints_the_promised_keys(capsys):
    assert (
        main(["bench", "planner", "--json", "--instances", "2", "--tries", "1", "--no-cases", "--reference", "2"]) == 0
    )
    figures = json.loads(capsys.readouterr().out)
    keys = {
        "p50_ms_32x500",
        "p99_ms_32x500",
        "p50_ms_1024x20000",
        "bags_p50_ms_32x500",
        "cpsat_gap_median",
        "cpsat_gap_worst",
    }
    assert keys <= set(figures)


def test_hardware_yaml_of_a_user_is_read(batch, tmp_path, capsys):
    rows = load_hardware("a800-16").to_dict() | {"nodes": 1, "speed": [1.0] * 7 + [0.5]}
    (tmp_path / "mine.yaml").write_text("\n".join(f"{k}: {v}" for k, v in rows.items()))
    assert main(["plan", "--batch", batch, "--hardware", str(tmp_path / "mine.yaml"), "--model", "flux", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["world_size"] == 8
