"""A row of a report as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from torch_mtia.portability import bound
from torch_mtia.portability.assembly import Access, Code
from torch_mtia.portability.rows import COMPILES, FAILS, Row


def described(row: Row) -> Iterator[str]:
    """Returns the lines, the first with the target."""
    if row.status == FAILS:
        where = f"{row.place[0]}:{row.place[1]}: " if row.place is not None else ""
        yield f"{row.target}: {FAILS}: {where}{row.message}"
        return
    assert row.code is not None
    code = row.code
    yield f"{row.target}: {row.status}" + (f": {row.message}" if row.status != COMPILES else "")
    yield f"  {resources(row)}"
    if occupancy := resident(row):
        yield f"  {occupancy}"
    if row.specialization.counts is not None:
        for line in bound.described(row.specialization.counts, row.target):
            yield f"  {line}"
    if row.has_dot or code.matrix:
        yield f"  tensor cores: {', '.join(code.matrix) or 'none, and there is a tl.dot'}"
    for access in code.accesses:
        key = (access.file, access.line, access.kind)
        reason, run = row.reasons.get(key), row.contiguous.get(key)
        warp = "" if run is None else f", {run} bytes in a row by a warp" if run else ", no two in a row by a warp"
        yield f"  line {access.line}: {access.kind} of {widths(access)}{warp}" + (f": {reason}" if reason else "")
    yield from (f"  {line}" for line in bank_conflicts(code))


def bank_conflicts(code: Code) -> Iterator[str]:
    """Returns a line for each conflict in shared memory, and one for the other accesses."""
    unknown: dict[str, list[str]] = {}
    for each in code.shared_accesses:
        if each.ways is None:
            unknown.setdefault(each.why, []).append(f"line {each.line}")
        elif each.ways > 1:
            yield f"line {each.line}: {each.kind} in shared memory with {each.ways}-way bank conflicts"
    free = len({(each.file, each.line) for each in code.shared_accesses if each.ways == 1})
    parts = [f"none in {free} line{'s' * (free != 1)} of loads or stores"] if free else []
    parts += [f"not known of {', '.join(dict.fromkeys(places))}, {why}" for why, places in unknown.items()]
    if parts:
        yield f"bank conflicts: {'; '.join(parts)}"


def resources(row: Row) -> str:
    """Returns registers, spills and shared memory."""
    assert row.code is not None
    code = row.code
    stack = f", {code.stack} bytes of stack" if code.stack else ""
    of = f" of {row.max_shared:,}" if row.max_shared is not None else ""
    spilled = f"{code.spilled} bytes spilled" if code.spilled else "no spills"
    allocated = f" ({code.allocated} allocated)" if code.allocated != code.registers else ""
    return f"{code.registers} registers{allocated}, {spilled}{stack}; {code.shared:,}{of} bytes of shared memory"


def resident(row: Row) -> str:
    """Returns the occupancy; "" if nothing is known of the chip."""
    if row.occupancy is None or row.code is None:
        return ""
    found = row.occupancy
    each = f"{found.programs} program{'s' * (found.programs != 1)} of {row.code.warps} warps"
    return (
        f"{each} resident per multiprocessor: {found.warps} of {found.max_warps} warps, "
        f"limited by {' and '.join(found.limits)}"
    )


def widths(access: Access) -> str:
    """Returns how many bits a thread accesses at once."""
    return ", ".join(f"{bits} bits" if bits else "tiles (TMA)" for bits in sorted(access.widths, reverse=True))
