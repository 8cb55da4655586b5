"""The commit rule in every order of deaths, votes, decisions and restarts, without a process."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from zellige_ray.actors.commit import CommitRule, decide_again
from zellige_ray.actors.messages import Decision, Member, Standing, Vote
from zellige_ray.errors import DataError, PoolError
from zellige_ray.monitor.events import RankTimes

MEMBERS = ("a", "b", "c")


def vote(step: int, finite: bool = True, plan: str = "plan") -> Vote:
    return Vote(step, plan, 0.0, 1.0, 2.0, finite, 1e-3, 0.5, RankTimes(0, 0, 0, 0, 0, 1, 1))


def standing(worker: str, epoch: int, applied: int, held: Vote | None = None) -> Standing:
    return Standing(Member(worker, "node", 1, "cpu", 1 << 30, 0, "1", "m"), epoch, applied, held)


def opened(step: int = 7, epoch: int = 3) -> tuple[CommitRule, list[int]]:
    rule, logged = CommitRule(Decision(step - 1)), list[int]()
    assert rule.open(epoch, MEMBERS) == step
    return rule, logged


def test_a_step_counts_when_all_have_voted_and_not_before() -> None:
    rule, logged = opened()
    for worker in MEMBERS:
        assert rule.verdict == "wait"
        with pytest.raises(PoolError, match="step 7 can't be committed: wait"):
            rule.commit(lambda step, v: logged.append(step))
        assert rule.vote(worker, 3, vote(7))
    assert rule.commit(lambda step, v: logged.append(step)) == Decision(7)
    assert (logged, rule.decided) == ([7], Decision(7))


@pytest.mark.parametrize("voted", [(), ("a",), ("a", "b"), ("b", "c"), MEMBERS])
@pytest.mark.parametrize("dead", [("c",), ("a", "b"), MEMBERS])
def test_a_death_before_during_or_after_the_reduction_drops_the_step(
    voted: tuple[str, ...], dead: tuple[str, ...]
) -> None:
    """Whoever of them had its gradients: the survivors may not all have them."""
    rule, logged = opened()
    for worker in voted:
        rule.vote(worker, 3, vote(7))
    for worker in dead:
        rule.lose(worker)
    assert rule.verdict == "drop"
    with pytest.raises(PoolError):
        rule.commit(lambda step, v: logged.append(step))
    rule.drop()
    assert (logged, rule.decided) == ([], Decision(6))
    assert rule.open(4, [m for m in MEMBERS if m not in dead]) == 7  # the same step again, among the survivors


def test_order_of_votes_and_deaths_does_not_matter() -> None:
    for order in itertools.permutations([("vote", "a"), ("vote", "b"), ("vote", "c"), ("lose", "c")]):
        rule, _ = opened()
        for what, worker in order:
            if what == "vote":
                rule.vote(worker, 3, vote(7))
            else:
                rule.lose(worker)
        assert rule.verdict == "drop", order


def test_a_frozen_worker_that_wakes_in_a_later_epoch_is_refused() -> None:
    rule, _ = opened(epoch=3)
    rule.lose("c")
    rule.drop()
    rule.open(4, ("a", "b"))
    assert not rule.vote("c", 3, vote(7))  # what it computed before it froze
    assert not rule.vote("c", 4, vote(7))  # nor may it learn the number of the epoch
    assert not rule.vote("a", 3, vote(7))  # a vote of a member that was under way
    assert not rule.vote("a", 4, vote(6))
    assert rule.vote("a", 4, vote(7))
    assert rule.vote("b", 4, vote(7))
    assert rule.verdict == "commit"


def test_a_vote_that_comes_after_its_worker_was_given_up_does_not_count() -> None:
    rule, _ = opened()
    rule.lose("b")
    assert not rule.vote("b", 3, vote(7))
    assert rule.verdict == "drop"


def test_a_ledger_that_refuses_leaves_the_step_undecided_and_it_can_be_tried_again() -> None:
    rule, logged = opened()
    for worker in MEMBERS:
        rule.vote(worker, 3, vote(7))

    def full(step: int, v: Vote) -> None:
        raise DataError("no space")

    with pytest.raises(DataError):
        rule.commit(full)
    assert rule.decided == Decision(6)
    assert rule.commit(lambda step, v: logged.append(step)) == Decision(7)


def test_ranks_that_hold_different_results_are_an_error() -> None:
    rule, _ = opened()
    for worker in MEMBERS:
        rule.vote(worker, 3, vote(7, plan="other" if worker == "b" else "plan"))
    with pytest.raises(PoolError, match="ranks voted for different results of step 7"):
        assert rule.verdict


def test_a_step_that_is_not_finite_is_decided_without_an_update() -> None:
    rule, _ = opened()
    for worker in MEMBERS:
        rule.vote(worker, 3, vote(7, finite=False))
    assert rule.commit(lambda step, v: None) == Decision(7, update=False)


def test_nothing_opened_is_nothing_to_commit() -> None:
    assert CommitRule(Decision(0)).verdict == "drop"


# A driver that starts again: `step` is the last one in the ledger


def again(step: int, standings: list[Standing], members: tuple[str, ...] = MEMBERS, epoch: int = 3) -> Any:
    return decide_again(step, members, epoch, {s.member.worker: s for s in standings})


def test_driver_death_before_the_append_with_every_vote_there_commits_the_step() -> None:
    found = again(6, [standing(w, 3, 6, vote(7)) for w in MEMBERS])
    assert (found.decided, found.commit) == (Decision(6), vote(7))
    assert (found.holders, found.behind) == (MEMBERS, ())


@pytest.mark.parametrize(
    "third",
    [None, standing("c", 3, 6, None), standing("c", 2, 6, vote(7)), standing("c", 3, 6, vote(7, plan="other"))],
)
def test_driver_death_before_the_append_with_a_vote_missing_runs_the_step_again(third: Standing | None) -> None:
    """Also during the append: a torn line is cut off when the ledger is opened, so the step is not in it."""
    others = [standing(w, 3, 6, vote(7)) for w in ("a", "b")]
    found = again(6, [*others, *([third] if third else [])])
    assert (found.decided, found.commit) == (Decision(6), None)
    assert found.holders == (MEMBERS if third else ("a", "b"))


@pytest.mark.parametrize("applied", list(itertools.product([6, 7], repeat=3)))
def test_driver_death_after_the_append_stands_by_it_whoever_has_applied_it(applied: tuple[int, ...]) -> None:
    """Between commit and apply: those who have not applied hold the gradients that lead there."""
    standings = [standing(w, 3, at, None if at == 7 else vote(7)) for w, at in zip(MEMBERS, applied, strict=True)]
    found = again(7, standings)
    assert (found.decided, found.commit, found.holders) == (Decision(7), None, MEMBERS)


def test_driver_death_between_commit_and_apply_of_a_step_that_was_not_finite_changes_no_weight() -> None:
    found = again(7, [standing(w, 3, 6, vote(7, finite=False)) for w in MEMBERS])
    assert found.decided == Decision(7, update=False)


def test_a_worker_that_lost_its_gradients_after_the_commit_takes_the_state_over() -> None:
    found = again(7, [standing("a", 3, 7), standing("b", 3, 6, None), standing("c", 3, 6, vote(7))])
    assert (found.holders, found.behind) == (("a", "c"), ("b",))


def test_newcomers_that_never_joined_hold_nothing_even_at_step_0() -> None:
    found = again(0, [standing("a", 3, 0), standing("d", -1, 0)])
    assert (found.holders, found.behind) == (("a",), ("d",))


def test_with_nobody_who_holds_the_state_there_are_no_holders() -> None:
    found = again(9, [standing("d", -1, 0)])
    assert (found.holders, found.behind, found.commit) == ((), ("d",), None)
