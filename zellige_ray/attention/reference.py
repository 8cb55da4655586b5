"""The reference: attention of whole sequences, one by one, in float64 and plain formulas; slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def reference_attention(q_QNH: Tensor, k_KNH: Tensor, v_KNH: Tensor, lengths: Sequence[tuple[int, int]]) -> Tensor:
    """softmax(q k' / sqrt(H)) v per segment of (queries, keys); float64 whatever comes in; differentiable."""
    q_QNH, k_KNH, v_KNH = q_QNH.double(), k_KNH.double(), v_KNH.double()
    outs: list[Tensor] = []
    a = b = 0
    for queries, keys in lengths:
        q, k, v = q_QNH[a : a + queries], k_KNH[b : b + keys], v_KNH[b : b + keys]
        scores_NQK = torch.einsum("qnh,knh->nqk", q, k) * q.shape[-1] ** -0.5
        weights_NQK = torch.exp(scores_NQK - torch.logsumexp(scores_NQK, dim=-1, keepdim=True))
        outs.append(torch.einsum("nqk,knh->qnh", weights_NQK, v))
        a, b = a + queries, b + keys
    return torch.cat(outs) if outs else q_QNH
