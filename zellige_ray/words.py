"""Numbers with their nouns, as a person would write them."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 worker`, `2 workers`. many: the plural, where it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
