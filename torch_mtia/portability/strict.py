"""What a strict check refuses, by itself or against a baseline of figures that were accepted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch_mtia.portability.rows import COMPILES, FAILS, Row

GROWTH = 1.25  # of registers and shared memory, from which on a change is refused


def failures(rows: Iterable[Row], max_spilled: int = 0) -> list[str]:
    """Returns a line for each kernel that does not compile, does not fit, spills more than so many bytes of a thread,
    or has a tl.dot and no instruction of tensor cores."""
    found = []
    for row in rows:
        if row.status != COMPILES:
            where = f"{row.place[0]}:{row.place[1]}: " if row.place is not None and row.status == FAILS else ""
            found.append(f"{_name(row)}: {row.status}: {where}{row.message}")
            continue
        assert row.code is not None
        if row.code.spilled > max_spilled:
            found.append(f"{_name(row)}: spills {row.code.spilled} bytes of each thread, more than {max_spilled}")
        if row.has_dot and not row.code.matrix:
            found.append(f"{_name(row)}: has a tl.dot and uses no tensor core")
    return found


def _name(row: Row) -> str:
    return f"{row.kernel}({row.title}) on {row.target}"


def baseline(rows: Iterable[Row]) -> str:
    """Returns the text of a baseline file: the figures of each kernel that compiles."""
    figures = {row.key: _figures(row) for row in rows if row.code is not None}
    return json.dumps(figures, indent=1, sort_keys=True) + "\n"


def _figures(row: Row) -> dict[str, Any]:
    assert row.code is not None
    return {
        "registers": row.code.registers,
        "shared_bytes": row.code.shared,
        "spilled_bytes": row.code.spilled,
        "matrix_instructions": list(row.code.matrix),
    }


def read_baseline(file: Path) -> dict[str, Any]:
    """Returns a baseline. Raises ValueError for a file that is none."""
    try:
        figures = json.loads(file.read_text())
        if isinstance(figures, dict) and all(isinstance(each, dict) for each in figures.values()):
            return figures
    except json.JSONDecodeError:
        pass
    raise ValueError(f"{file} is not a baseline; remove it, and the next run writes one")


def regressions(rows: Iterable[Row], accepted: Mapping[str, Any]) -> list[str]:
    """Returns a line for each figure that is worse than the accepted one: more spilled bytes, no tensor cores any more,
    or registers or shared memory that grew by more than a quarter. Kernels without figures there are not compared."""
    found = []
    for row in rows:
        before = accepted.get(row.key)
        if before is None or row.code is None:
            continue
        now = _figures(row)
        for name in ("registers", "shared_bytes"):
            if now[name] > GROWTH * before[name]:
                found.append(f"{_name(row)}: {name} were {before[name]} and are {now[name]}")
        if now["spilled_bytes"] > before["spilled_bytes"]:
            found.append(f"{_name(row)}: spilled_bytes were {before['spilled_bytes']} and are {now['spilled_bytes']}")
        if before["matrix_instructions"] and not now["matrix_instructions"]:
            found.append(f"{_name(row)}: used {', '.join(before['matrix_instructions'])} and uses no tensor core")
    return found
