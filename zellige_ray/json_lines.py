"""A line of JSON that somebody else wrote: whatever is wrong with it is a ValueError, in words."""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str) -> Any:
    """The value. Raises ValueError: no JSON, nested too deeply, half of a character (a lone surrogate)."""
    try:
        value = json.loads(text)
    except RecursionError as fault:
        raise ValueError("it is nested too deeply") from fault
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as fault:
            half = fault.object[fault.start : fault.end]
            raise ValueError(f"it holds half of a character, {half!r}: write the whole one") from fault
    return value


def is_number(value: Any, least: float, above: bool = False) -> bool:
    """Is it a finite number that a float can hold, of at least `least`, or above it?"""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        number = float(value)
    except OverflowError:  # more digits than a float has room for
        return False
    return math.isfinite(number) and (number > least if above else number >= least)


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a very long number"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
