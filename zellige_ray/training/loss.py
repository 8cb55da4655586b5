"""Flow-matching loss: local sum over tokens x weight / global count, so that SUMmed gradients are the true ones.

The plan never enters: the weight of a token follows from the whole batch, which every rank knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from zellige_ray.data.index import SampleMeta


def token_weights(
    samples: Sequence[SampleMeta], num_tokens: Mapping[str, int], weighting: Literal["sample", "token"]
) -> dict[str, float]:
    """Weight of each visual token of a sample, normalised over the global batch: the weights of all tokens sum to 1.

    `sample`: weight_s / (n_s x sum of weights). `token`: weight_s / (sum of weight x n).
    """
    if weighting == "sample":
        total = sum(s.weight for s in samples)
        return {s.id: s.weight / (num_tokens[s.id] * total) for s in samples}
    total = sum(s.weight * num_tokens[s.id] for s in samples)
    return {s.id: s.weight / total for s in samples}


def flow_matching_loss(pred_TCphw: Tensor, target_TCphw: Tensor, weight_T: Tensor) -> Tensor:
    """Weighted sum over local tokens of the mean squared error of each token; a scalar, 0 without tokens.

    Summed over ranks it is the loss of the global batch.
    """
    error_T = (pred_TCphw - target_TCphw).square().flatten(1).mean(1)
    return torch.dot(error_T, weight_T.to(error_T.dtype))
