"""A section of the configuration: frozen, closed to unknown keys."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


S = TypeVar("S", bound=Section)


def agree(section: S, where: str, needed: bool, path: str | None) -> S:
    """The section, if it has a path where its kind needs one, and none where the path would be ignored."""
    kind = section.model_dump()["name"]
    if needed and path is None:
        raise ValueError(f"{where}.name is {kind}, which needs {where}.path")
    if not needed and path is not None:
        raise ValueError(
            f"{where}.path is {path!r}, which {where}.name {kind} would ignore: remove it or change the name"
        )
    return section
