"""Noise and timesteps as functions of (seed, pass, sample id): counter-based, so any token interval can be drawn alone.

Never of rank, plan or world size. Philox (Salmon et al., 2011) has a 256-bit counter: its third word numbers the block
of tokens, its fourth the purpose, and a block is always drawn whole, so that a slice equals the slice of the whole.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from zellige_ray.config import LossConfig

BLOCK_TOKENS = 256
TIMESTEP, NOISE = 0, 1

HELD_OUT_PASS = -1  # passes below zero are walks outside of training: held-out draws -1, -2, ...
PREVIEW_PASS = -1_000_000


def generator(seed: int, pass_: int, sample_id: str, purpose: int, block: int = 0) -> np.random.Generator:
    """The random stream of one sample in one pass, for one purpose and token block."""
    digest = hashlib.blake2b(f"{seed}/{pass_}/{sample_id}".encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u8")
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, block, purpose], dtype=np.uint64)))


def token_noise(seed: int, pass_: int, sample_id: str, start: int, stop: int, width: int) -> NDArray[np.float64]:
    """Standard normal noise of tokens [start, stop) of a sample: [stop - start, width], float64."""
    out = np.empty((stop - start, width))
    for block in range(start // BLOCK_TOKENS, -(-stop // BLOCK_TOKENS)):
        first = block * BLOCK_TOKENS
        drawn = generator(seed, pass_, sample_id, NOISE, block).standard_normal((BLOCK_TOKENS, width))
        a, b = max(start, first), min(stop, first + BLOCK_TOKENS)
        out[a - start : b - start] = drawn[a - first : b - first]
    return out


def timestep(seed: int, pass_: int, sample_id: str, loss: LossConfig) -> float:
    """The logit-normal timestep of a sample in (0, 1), shifted towards noise where `shift` > 1."""
    normal = generator(seed, pass_, sample_id, TIMESTEP).standard_normal()
    t = 1.0 / (1.0 + np.exp(-(loss.timestep_mean + loss.timestep_std * normal)))
    return float(loss.shift * t / (1.0 + (loss.shift - 1.0) * t))
