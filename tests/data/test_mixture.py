"""Several data sets drawn by their ratios: what a pass is, what batches hold, what a ledger proves."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actors.tiny_data import write_cache
from zellige_ray.actors.batches import Batches
from zellige_ray.cli import main
from zellige_ray.config import BatchConfig, DataConfig, parse_config
from zellige_ray.data.gather import gather
from zellige_ray.data.index import Index, SampleMeta, data_set_of
from zellige_ray.data.ledger import QUARANTINED, Ledger, Record, verify
from zellige_ray.data.order import Mixed, as_held
from zellige_ray.data.sampler import Sampler, SamplerState
from zellige_ray.errors import ConfigError, DataError
from zellige_ray.models.specs import get_spec


def make_index(sizes: dict[str, int], ratios: dict[str, float]) -> Index:
    parts = {
        name: Index.of(SampleMeta(f"s{n:02}", "video" if n % 3 else "image", (16, 1, 4, 4), 0) for n in range(size))
        for name, size in sizes.items()
    }
    return Index.mixed(parts, ratios)


def draws(index: Index, seed: int, passes: int) -> list[str]:
    order = Mixed(index, seed)
    return [sample.id for pass_ in range(passes) for sample in order.of(pass_)]


mixtures = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.tuples(st.integers(1, 12), st.floats(0.05, 20)), min_size=1
).map(lambda parts: make_index({n: p[0] for n, p in parts.items()}, {n: p[1] for n, p in parts.items()}))


@given(mixtures, st.integers(0, 3))
def test_a_data_set_is_walked_to_its_end_before_a_sample_of_it_comes_again(index: Index, seed: int) -> None:
    used = draws(index, seed, passes=4)
    assert len(set(used)) == len(used)
    for name, part in index.parts().items():
        own = [as_held(drawn) for drawn in used if data_set_of(drawn) == name]
        assert [pass_ for _, pass_ in own] == [n // len(part) for n in range(len(own))]
        for start in range(0, len(own) - len(part) + 1, len(part)):
            assert sorted(sample for sample, _ in own[start : start + len(part)]) == list(part.ids)


@given(st.tuples(st.integers(1, 12), st.integers(1, 12)), st.floats(0.1, 10), st.integers(0, 3))
def test_any_stretch_of_draws_holds_the_ratio_within_one_sample(
    sizes: tuple[int, int], ratio: float, seed: int
) -> None:
    index = make_index({"a": sizes[0], "b": sizes[1]}, {"a": ratio, "b": 1.0})
    used = [data_set_of(drawn) for drawn in draws(index, seed, passes=3)]
    for start, stop in itertools.combinations(range(len(used) + 1), 2):
        assert abs(used[start:stop].count("a") - ratio / (ratio + 1) * (stop - start)) <= 1 + 1e-9


def test_ratios_hold_over_a_thousand_passes_and_a_late_pass_needs_no_earlier_one() -> None:
    index = make_index({"a": 7, "b": 3}, {"a": 0.1, "b": 0.2})
    counts = Counter(data_set_of(drawn) for drawn in draws(index, 1, passes=1000))
    assert abs(counts["b"] - 2 * counts["a"]) <= 3
    assert counts.total() == pytest.approx(10_000, abs=2)
    walked = Mixed(index, 1)
    assert [walked.of(pass_) for pass_ in range(6)][5] == Mixed(index, 1).of(5)


def test_a_state_through_json_continues_a_mixture_where_it_stood() -> None:
    index, size = make_index({"a": 7, "b": 3}, {"a": 1, "b": 2}), BatchConfig(samples=3)
    expected = list(itertools.islice(Sampler(index, size, 5).batches(), 20))
    state = SamplerState.from_json(expected[11][1].to_json())
    assert list(itertools.islice(Sampler(index, size, 5).batches(state), 8)) == expected[12:]
    changed = make_index({"a": 7, "b": 3}, {"a": 1, "b": 3})
    with pytest.raises(DataError, match="the data set has changed"):
        Sampler(changed, size, 5).check(index.fingerprint)


def test_held_out_places_go_by_the_ratios_and_no_data_set_is_used_up() -> None:
    train, held = make_index({"a": 20, "b": 20}, {"a": 3, "b": 1}).split(8, 0)
    assert Counter(map(data_set_of, held.ids)) == {"a": 6, "b": 2}
    assert train.ratios == (("a", 3), ("b", 1))
    assert not set(train.ids) & set(held.ids)
    with pytest.raises(DataError, match="2 samples can't give 4 held-out ones"):
        make_index({"a": 20, "b": 2}, {"a": 1, "b": 1}).split(8, 0)


def write_ledger(path: Path, index: Index, batches: list[list[str]]) -> Path:
    ledger = Ledger(path, index)
    for step, ids in enumerate(batches, start=1):
        ledger.append(Record(step, 0, tuple(ids), "hash", 0, 2, 0.5))
    ledger.close()
    return path


def test_the_ledger_of_a_mixture_proves_the_passes_of_each_data_set(tmp_path: Path) -> None:
    index = make_index({"a": 4, "b": 3}, {"a": 1, "b": 2})
    used = draws(index, 0, passes=3)
    report = verify(write_ledger(tmp_path / "whole", index, [used[n : n + 4] for n in range(0, len(used), 4)]))
    assert report.ok
    assert report.samples == len(used)
    walks = {name: len([u for u in used if data_set_of(u) == name]) // size for name, size in (("a", 4), ("b", 3))}
    assert report.complete_passes == sum(walks.values())
    broken = [*used[:-1], used[-2], "c/s00@0", "s00"]
    lost = next(u for u in used if u.startswith("b/") and u.endswith("@0"))
    report = verify(write_ledger(tmp_path / "broken", index, [[u for u in broken if u != lost]]))
    assert (report.samples_lost, report.samples_doubled, report.samples_unknown) == (1, 1, 2)
    (bad,) = [one for one in report.passes if one.lost]
    assert (bad.data_set, bad.pass_, bad.lost) == ("b", 0, (as_held(lost)[0],))


def test_a_sample_that_was_set_aside_stays_so_in_later_passes_of_its_data_set(tmp_path: Path) -> None:
    index = make_index({"a": 4, "b": 3}, {"a": 1, "b": 2})
    config = parse_config(
        {
            "data": {"sources": {n: {"source": n, "ratio": r} for n, r in index.ratios}, "max_corrupt": 0.5},
            "batch": {"samples": 2},
        }
    )
    batches = Batches(index, config, SampleMeta.tokens)
    batches.refuse(["b/s01@2"])
    drawn, state, ledger = [], SamplerState(), Ledger(tmp_path / "ledger", index)
    ledger.append(Record(0, 0, event=QUARANTINED, detail="b/s01@2"))
    for step in range(1, 12):
        samples, state = batches.at(state)
        drawn += [sample.id for sample in samples]
        ledger.append(Record(step, 0, tuple(s.id for s in samples), "hash", 0, 2, 0.5))
    ledger.close()
    assert "b/s01" not in {as_held(name)[0] for name in drawn}
    assert verify(tmp_path / "ledger").ok


def test_data_sets_are_encoded_each_into_its_cache_and_read_as_one(media_folder: Path, tmp_path: Path) -> None:
    config = DataConfig(
        sources={
            "all": {"source": str(media_folder), "ratio": 1.0},
            "sub": {"source": str(media_folder / "sub"), "ratio": 2.0},
        },
        cache=str(tmp_path / "cache"),
    )
    told = []
    found = gather(config, get_spec("wan"), told=lambda name, report: told.append((name, report.written)))
    assert told == [("all", 4), ("sub", 2)]
    assert found.index.ids == ("all/red", "all/short", "all/sub/blue", "all/sub/long", "sub/blue", "sub/long")
    assert len({Path(s.file).parent for s in found.index.samples if s.id in ("all/red", "sub/blue")}) == 2
    texts = {s.id: found.cache.caption(s) for s in found.index.samples}
    assert texts["sub/long"] == texts["all/sub/long"] != texts["all/red"] == "A red wave."
    latents, _ = found.cache.read(found.index.samples[-1])
    assert tuple(latents.shape) == found.index.samples[-1].latent_shape


def test_data_sets_that_are_not_alike_can_not_be_mixed(media_folder: Path, tmp_path: Path) -> None:
    other = write_cache(tmp_path / "other")
    sources = {
        "media": {"source": str(media_folder), "ratio": 1.0},
        "latents": {"source": str(other.folder), "ratio": 1.0},
    }
    with pytest.raises(DataError, match=r"data.sources.media and data.sources.latents can't be mixed: codec is .*"):
        gather(DataConfig(sources=sources, cache=str(tmp_path / "cache")), get_spec("wan"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"source": "a", "sources": {"b": {"source": "b", "ratio": 1}}},
            "data.source is 'a' and data.sources is ['b']",
        ),
        ({}, "data.source is None and data.sources is None: set exactly one of them"),
        ({"sources": {}}, "data.sources: "),
        ({"sources": {"b": {"source": "b"}}}, "data.sources.b.ratio: required, and not given"),
        ({"sources": {"b": {"source": "b", "ratio": 0}}}, "data.sources.b.ratio: expected greater than 0, got 0"),
        (
            {"sources": {"b": {"source": "b", "rato": 1}}},
            "data.sources.b.rato: unknown key, the nearest known one is ratio",
        ),
        ({"sources": {"b/c": {"source": "b", "ratio": 1}}}, "data.sources.b/c: expected pattern"),
    ],
)
def test_a_mistake_in_the_sources_is_named(data: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as fault:
        parse_config({"data": data, "batch": {"samples": 2}})
    assert said in str(fault.value)


def test_a_share_of_images_contradicts_ratios() -> None:
    data = {"sources": {"b": {"source": "b", "ratio": 1}}}
    with pytest.raises(ConfigError, match=r"batch.image_ratio is 0.5 and data.sources has ratios"):
        parse_config({"data": data, "batch": {"samples": 2, "image_ratio": 0.5}})


def test_encode_and_plan_take_a_mixture_from_the_command_line(
    media_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = f"{{all: {{source: {media_folder}, ratio: 1}}, sub: {{source: {media_folder / 'sub'}, ratio: 3}}}}"
    words = [f"data.sources={sources}", f"data.cache={tmp_path / 'cache'}", "data.held_out=0"]
    assert main(["encode", *words]) == 2
    assert "data.source is 'mini' and data.sources is ['all', 'sub']" in capsys.readouterr().err
    words.append("data.source=null")
    assert main(["encode", *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {name: one["written"] for name, one in answer.items()} == {"all": 4, "sub": 2}
    assert main(["plan", "mini", *words, "--hardware", "h200-8", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["samples"], planned["never_drawn"]) == (6, [])
