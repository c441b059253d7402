"""Makes a failing program smaller while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

PartT = TypeVar("PartT")


def shrink(parts: Sequence[PartT], fails: Callable[[Sequence[PartT]], bool], most_trials: int = 400) -> list[PartT]:
    """The parts without which it does not fail: drops halves, quarters, and so on down to one part at a time.

    `fails` runs what is left of the program. What depends on a dropped part is its business.
    """
    kept = list(parts)
    size = max(len(kept) // 2, 1)
    trials = 0
    while size > 0:
        start = 0
        while start < len(kept) and trials < most_trials:
            smaller = kept[:start] + kept[start + size :]
            trials += 1
            if smaller and fails(smaller):
                kept = smaller
            else:
                start += size
        size //= 2
    return kept
