"""Choice: what `auto` means for kernels and transports; it is logged once, with the reason."""

from __future__ import annotations

import functools
import importlib.util
import logging

import torch

from zellige_ray.attention.exchange import Transport, transports
from zellige_ray.attention.kernels import Kernel, get_kernel
from zellige_ray.errors import EngineError

log = logging.getLogger(__name__)


def choose_kernel(name: str, device: torch.device, dtype: torch.dtype) -> Kernel:
    """The named kernel; `auto`: sdpa, but in half precision on CUDA flash (where installed) or varlen."""
    if name != "auto":
        return get_kernel(name)
    if device.type != "cuda":
        return _chosen("kernel", "sdpa", f"the only one on {device.type}")
    if dtype not in (torch.bfloat16, torch.float16):
        return _chosen("kernel", "sdpa", f"the only one for {dtype}")
    if importlib.util.find_spec("flash_attn") is not None:
        return _chosen("kernel", "flash", "flash-attn is installed")
    return _chosen("kernel", "varlen", "flash-attn is not installed")


def choose_transport(name: str) -> Transport:
    """The named transport; `auto`: p2p, where components never wait for each other."""
    if name == "auto":
        _log_once("engine.transport auto: p2p, the one in which components never wait for each other")
        return "p2p"
    for known in transports:
        if name == known:
            return known
    raise EngineError(f"unknown transport {name!r}, known are auto, {', '.join(transports)} (engine.transport)")


def _chosen(what: str, name: str, why: str) -> Kernel:
    _log_once(f"engine.{what} auto: {name}, {why}")
    return get_kernel(name)


@functools.cache
def _log_once(message: str) -> None:
    log.info(message)
