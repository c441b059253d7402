"""What one launch accesses and computes, counted in the launch itself: the kernel is compiled once more, to say each
access and each block that it enters (Note [Watched kernels] in mtia_runtime.h)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch_mtia import _C
from torch_mtia.portability import source
from torch_mtia.triton import abi
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.launch import Compiled

UNITS = ("f64", "f32", "f16", "i8", "f8", "f4")  # by the operands' type
_FLOATS = {"f64": "f64", "f32": "f32", "f16": "f16", "bf16": "f16"}
_ONCE = frozenset({
    "arith.addf", "arith.divf", "arith.maximumf", "arith.maxnumf", "arith.minimumf", "arith.minnumf", "arith.mulf",
    "arith.remf", "arith.subf", "math.ceil", "math.cos", "math.erf", "math.exp", "math.exp2", "math.floor", "math.log",
    "math.log2", "math.rsqrt", "math.sin", "math.sqrt", "math.tanh", "tt.approx_divf", "tt.extern_elementwise",
    "tt.precise_divf", "tt.precise_sqrt",
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Counts:
    """Of one launch. Bytes are of global memory.

    Attributes:
        programs: of the grid.
        read: bytes, each counted once, that were not written by the launch before.
        written: bytes, each counted once.
        issued_read: bytes that loads and atomics read, with repetitions.
        issued_written: bytes that stores and atomics write, with repetitions.
        matmul: operations of tl.dot, a multiplication and an addition being two, by the type of the operands.
        other: other operations on floating-point numbers, one for each element of a result, by type; an FMA is two.
    """

    programs: int
    read: int
    written: int
    issued_read: int
    issued_written: int
    matmul: Mapping[str, int]
    other: Mapping[str, int]


def count(compiled: Compiled, launch: tuple[Any, ...]) -> Counts | None:
    """Launches a kernel and returns what it did; None: it was not launched, because it cannot be counted now.

    Args:
        compiled: the kernel.
        launch: sizes of the grid, stream, loaded kernel, and arguments.
    """
    import triton
    from triton.runtime import driver

    from torch_mtia.backend import device_module

    if _C._sanitizer_is_running() or device_module().is_current_stream_capturing():
        return None
    metadata = compiled.metadata
    names = [name for name in metadata._fields if name in source.option_names()]
    options = {**{name: getattr(metadata, name) for name in names}, "instrument": True, "count": True}
    try:
        counted = triton.compile(compiled.source, target=driver.active.get_current_target(), options=options)
        run = counted.run  # loads it
    except Exception:  # the program goes on: the kernel itself was compiled
        return None
    programs, sites, read, written, blocks = _C._count_launch(run, *launch[:4], counted.function, *launch[5:])
    matmul, other = _operations(compiled, blocks)

    def issued(kind: int) -> int:
        return sum(size * elements for *_, kinds, size, elements in sites if kinds & kind)

    return Counts(programs, read, written, issued(abi.SITE_READS), issued(abi.SITE_WRITES), dict(matmul), dict(other))


def _operations(compiled: Compiled, entered: Mapping[int, int]) -> tuple[Counter[str], Counter[str]]:
    matmul, other = Counter[str](), Counter[str]()
    for number, block in enumerate(source.module_of(compiled).blocks()):
        times = entered.get(number, 0)
        if times:
            for op in block.ops:
                _add(op, times, matmul, other)
    return matmul, other


def _add(op: Op, times: int, matmul: Counter[str], other: Counter[str]) -> None:
    if op.name in ("tt.dot", "tt.dot_scaled"):
        left, right = op.operands[0].type, op.operands[1].type
        assert left.shape is not None
        inner = left.shape[-1] * (2 if left.element == "i8" and op.name == "tt.dot_scaled" else 1)
        matmul[_unit(op, left.element, right.element)] += 2 * times * op.results[0].type.numel * inner
    elif op.name in ("tt.reduce", "tt.scan"):
        axis = op.attributes["axis"]
        shape = op.operands[0].type.shape
        assert shape is not None
        combinations = op.operands[0].type.numel // shape[axis] * (shape[axis] - 1)
        for inner_op in op.regions[0].blocks[0].ops:
            _add(inner_op, times * combinations, matmul, other)
    elif op.results and (unit := _FLOATS.get(op.results[0].type.element)):
        each = 2 if op.name == "math.fma" else 1 if op.name in _ONCE else 0
        if each:
            other[unit] += each * times * op.results[0].type.numel


def _unit(op: Op, left: str, right: str) -> str:
    if op.name == "tt.dot_scaled":
        return "f4" if "i8" in (left, right) else "f8"
    return _FLOATS.get(left) or ("i8" if left == "i8" else "f8")
