"""The least time that a launch can take on a product, by its published peaks: a lower bound, no prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch_mtia.portability.chips import PEAKS, Peak
from torch_mtia.portability.counting import Counts

FIRST_LINE = (
    "Bounds are lower bounds: the least time that a vendor's published peaks allow for what the launch here accessed "
    "and computed, with a cold cache. A kernel takes longer."
)
_PACKED = 4  # operations on 16-bit numbers of other units than tensor cores, in the time of one of 32 bits, at most


class Bound(NamedTuple):
    product: str
    microseconds: float
    limit: str  # "memory", "tensor cores" or "other arithmetic"
    source: str  # of the peaks, with the date


def bounds(counts: Counts, target: str) -> Iterator[Bound]:
    """Returns the bounds on the products of a target that have published peaks."""
    for peak in PEAKS:
        if peak.target == target:
            limits = {
                "memory": _memory(counts, peak),
                "tensor cores": _tensor_cores(counts, peak),
                "other arithmetic": _other(counts, peak),
            }
            limit = max(limits, key=lambda name: limits[name])
            yield Bound(peak.name, limits[limit], limit, f"{peak.source}, {peak.date}")


def _memory(counts: Counts, peak: Peak) -> float:
    """What is written may still be in the cache when the kernel ends."""
    moved = counts.read + max(counts.written - peak.cache, 0)
    return moved / (peak.bandwidth * 1e3)


def _tensor_cores(counts: Counts, peak: Peak) -> float:
    """Of types of which no peak is published, nothing is known."""
    # fp32 by tf32, unless the kernel asks for more, and whatever is faster.
    rates = {"f64": peak.f64, "f32": max(peak.tf32, peak.f32), "f16": peak.f16, "i8": peak.i8, "f8": peak.f8}
    return sum(number / (rates[unit] * 1e6) for unit, number in counts.matmul.items() if rates.get(unit))


def _other(counts: Counts, peak: Peak) -> float:
    rates = {"f64": peak.f64, "f32": peak.vector, "f16": peak.vector * _PACKED}
    return max((number / (rates[unit] * 1e6) for unit, number in counts.other.items()), default=0.0)


def described(counts: Counts, target: str) -> Iterator[str]:
    """Returns a line of text for each product."""
    for bound in bounds(counts, target):
        yield f"no {bound.product} runs this launch faster than {bound.microseconds:.3g} us: {bound.limit}"


def counted(counts: Counts) -> str:
    """Returns what was counted, as a line of text."""
    operations = [f"{number:,} of {unit} by tl.dot" for unit, number in counts.matmul.items()]
    operations += [f"{number:,} other of {unit}" for unit, number in counts.other.items()]
    return (
        f"first launch: {counts.programs:,} program{'s' * (counts.programs != 1)}, "
        f"{counts.read:,} bytes read ({counts.issued_read:,} issued), "
        f"{counts.written:,} written ({counts.issued_written:,} issued); operations: {', '.join(operations) or 'none'}"
    )
