"""Rows of earlier reports, in Triton's cache beside the compiled kernels that they are about."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_mtia.gpu_targets import Target
from torch_mtia.portability.launches import Specialization
from torch_mtia.portability.rows import FAILS, MAX_GRID, Row, rows_of
from torch_mtia.source_digest import source_digest

_FILE = "torch_mtia_rows.pickle"
_FIELDS = ("status", "message", "place", "code", "occupancy", "max_shared", "has_dot", "files", "contiguous", "reasons")


def load(specialization: Specialization, targets: Sequence[Target]) -> list[Row] | None:
    """Returns the rows of a specialization; None: they are not there, or the compiled kernels are there no more."""
    from triton import knobs

    if knobs.compilation.always_compile:
        return None
    rows = rows_of(specialization, targets)
    path = _cache(specialization, targets).get_file(_FILE)
    try:
        stored: list[dict[str, Any]] = pickle.loads(Path(path or "").read_bytes())
        for row, fields in zip(rows, stored, strict=True):
            for name in _FIELDS:
                setattr(row, name, fields[name])
    except (OSError, EOFError, pickle.UnpicklingError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return rows if all(os.path.exists(path) for row in rows for path in row.files.values()) else None


def store(rows: Sequence[Row], targets: Sequence[Target]) -> None:
    """Stores the rows of one specialization, if each has compiled: another time, a compiler may not die."""
    if any(row.status == FAILS for row in rows):
        return
    data = pickle.dumps([{name: getattr(row, name) for name in _FIELDS} for row in rows])
    with contextlib.suppress(OSError):  # the cache may be read-only
        _cache(rows[0].specialization, targets).put(data, _FILE)


def _cache(specialization: Specialization, targets: Sequence[Target]) -> Any:
    """Triton's manager of the folder of a key: of everything that the rows depend on."""
    from triton import knobs
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_manager, triton_key

    code, grid = specialization.source.fn.fn.__code__, specialization.grid
    parts = (
        triton_key(), source_digest("portability"), source_digest("triton"),
        specialization.source.hash(), code.co_filename, code.co_firstlineno,
        sorted((name, str(value)) for name, value in specialization.options.items()),
        specialization.short, grid if max(grid) > MAX_GRID else (), tuple(map(str, targets)),
        os.stat(knobs.nvidia.ptxas.path).st_mtime_ns,
        sorted(get_cache_invalidating_env_vars().items()),
        sorted(item for item in os.environ.items() if item[0].startswith("TRITON_") and "CACHE" not in item[0]),
    )  # fmt: skip
    return get_cache_manager(hashlib.sha256(repr(parts).encode()).hexdigest())
