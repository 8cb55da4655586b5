"""The error tree: every fault that a person can act on has a name and an exit code.

Messages carry the value, the limit and the knob that changes it.
"""

from __future__ import annotations


class ZelligeError(Exception):
    """Root of every error that Zellige raises on purpose."""

    exit_code = 1


class ConfigError(ZelligeError):
    """A configuration that can't be used: unknown key, wrong type, contradiction."""

    exit_code = 2


class PlanError(ZelligeError):
    """A batch that can't be placed, or a plan that misses or doubles work."""

    exit_code = 2


class DataError(ZelligeError):
    """A data set that can't be trained on: empty, unreadable, inconsistent."""

    exit_code = 2


class ModelError(ZelligeError):
    """A model that is unknown, or can't run what it was asked to run."""

    exit_code = 2


class CheckpointError(ZelligeError):
    """A checkpoint that is incomplete, foreign, or can't be read."""

    exit_code = 2


class EngineError(ZelligeError):
    """Attention can't run as planned: kernel, dtype, layout or a bypassed seam."""


class PoolError(ZelligeError):
    """Too few workers, or a worker that can't be used."""

    exit_code = 3


class OutOfMemory(PoolError):  # noqa: N818  (what allocators call it)
    """A batch that workers can't hold, however it is planned."""


class CommError(ZelligeError):
    """A collective failed: a peer died, or a wait ran into its time-out."""


class Regroup(CommError):  # noqa: N818  (a turn of events, not a fault)
    """The driver cancelled the work in flight: a new epoch is coming."""


__all__ = [
    "CheckpointError",
    "CommError",
    "ConfigError",
    "DataError",
    "EngineError",
    "ModelError",
    "OutOfMemory",
    "PlanError",
    "PoolError",
    "Regroup",
    "ZelligeError",
]
