"""Weights of a global batch sum to one, whichever way samples count."""

import pytest
import torch

from zellige_ray.data.index import SampleMeta
from zellige_ray.training.loss import flow_matching_loss, token_weights

SAMPLES = (
    SampleMeta("image", "image", (16, 1, 4, 4), 3),
    SampleMeta("clip", "video", (16, 5, 8, 8), 0, weight=3.0),
)
TOKENS = {"image": 4, "clip": 80}


@pytest.mark.parametrize("weighting", ["sample", "token"])
def test_the_weights_of_all_tokens_sum_to_one(weighting: str) -> None:
    weights = token_weights(SAMPLES, TOKENS, weighting)  # type: ignore[arg-type]
    assert sum(weights[s] * n for s, n in TOKENS.items()) == pytest.approx(1, abs=1e-15)


def test_by_sample_a_clip_counts_by_its_weight_not_by_its_length() -> None:
    weights = token_weights(SAMPLES, TOKENS, "sample")
    assert weights["clip"] * 80 == pytest.approx(3 * weights["image"] * 4)


def test_by_token_each_token_counts_by_the_weight_of_its_sample() -> None:
    weights = token_weights(SAMPLES, TOKENS, "token")
    assert weights["clip"] == pytest.approx(3 * weights["image"])


def test_the_loss_of_no_token_is_zero_and_has_a_gradient() -> None:
    pred = torch.ones(2, 1, requires_grad=True)
    loss = flow_matching_loss(pred[:0], torch.empty(0, 1), torch.empty(0, dtype=torch.float64))
    loss.backward()
    assert loss == 0
    assert torch.equal(pred.grad, torch.zeros(2, 1))  # type: ignore[arg-type]


def test_the_loss_is_the_weighted_sum_of_each_tokens_mean_square() -> None:
    pred, target = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert flow_matching_loss(pred, target, torch.tensor([0.25, 0.5])).item() == pytest.approx(0.25 * 5 + 0.5 * 2)
