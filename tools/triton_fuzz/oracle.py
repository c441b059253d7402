"""Triton's interpreter, in a process of its own: with TRITON_INTERPRET=1 nothing of the process can be compiled, and
Triton's own library of kernels is only interpretable in such a process.

It is corrected and made faster here: see Note [Combining whole tensors] and `_with_arrays_as_taken`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import triton.language as tl
from triton.runtime import interpreter

from tools.hunts.worker import Run, Worker
from tools.triton_fuzz.kernels import Buffers, Tensors, running
from tools.triton_fuzz.program import Program


def interpreter_worker(limit: float) -> Worker[Program, Buffers]:
    return Worker(prepare, {"TRITON_INTERPRET": "1"}, limit)


def prepare() -> Run[Program, Buffers]:
    warnings.simplefilter("ignore")  # NumPy's, of integers that wrap
    for name, mask in (("load", 1), ("store", 2), ("atomic_rmw", 3), ("atomic_cas", None)):
        function = getattr(interpreter._interpreter, name)
        setattr(interpreter._interpreter, name, _with_arrays_as_taken(function, mask))
    interpreter._implicit_cvt = _with_bool(interpreter._implicit_cvt)
    interpreter.ReduceOps.generic_reduce = _reduce
    interpreter.ScanOps.generic_scan = _scan
    return running(_interpret)


def _interpret(program: Program, kernel: Any, tensors: Tensors) -> Tensors:
    by_position, by_name = program.arguments(tensors)
    kernel[(program.grid,)](*by_position, **by_name)
    return tensors


def _with_arrays_as_taken(function: Callable[..., Any], mask: int | None) -> Callable[..., Any]:
    """Memory is accessed with the elements of an array as they lie, whatever its strides: those of a reversed scan are
    negative, and what lies behind its first element is not its own. And from Triton 3.9 on the argument `mask` must be
    an array of bool, as masks that were computed are not."""

    def call(*arguments: Any) -> Any:
        arrays = [
            numpy.ascontiguousarray(value) if isinstance(value, (numpy.ndarray, memoryview)) else value
            for value in arguments
        ]
        if mask is not None:
            arrays[mask] = arrays[mask].astype(bool)
        return function(*arrays)

    return call


def _with_bool(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of an argument; the interpreter takes a bool for an integer of 32 bits, which its type cannot hold."""

    def call(argument: Any) -> Any:
        if isinstance(argument, bool):
            return tl.tensor(interpreter.TensorHandle(numpy.array([argument]), tl.int1), tl.int1)
        return convert(argument)

    return call


# Note [Combining whole tensors]
# The interpreter calls a combine function once for each element. Here it is called on whole tensors: neighbours are
# combined with neighbours, which for a function that is associative gives what left to right gives.


def _combined(of: Any, left: Sequence[Any], right: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """Arrays of the left elements combined with the right ones."""
    operands = [
        of.to_tensor(array, dtype) for arrays in (left, right) for array, dtype in zip(arrays, types, strict=True)
    ]
    results = of.combine_fn.fn(*operands)
    results = results if isinstance(results, tuple) else (results,)
    return [
        numpy.broadcast_to(result.handle.data.astype(array.dtype), array.shape)
        for result, array in zip(results, left, strict=True)
    ]


def _reduce(self: Any, operands: Any) -> list[Any]:
    types = [operand.dtype for operand in operands]
    arrays = [operand.handle.data for operand in operands]
    arrays = [array.ravel() if self.axis is None else numpy.moveaxis(array, self.axis, 0) for array in arrays]
    while len(arrays[0]) > 1:
        arrays = _combined(self, [array[0::2] for array in arrays], [array[1::2] for array in arrays], types)
    keeps_axis = self.keep_dims and self.axis is not None
    results = [numpy.moveaxis(array, 0, self.axis) if keeps_axis else array[0] for array in arrays]
    return [self.to_tensor(result, dtype) for result, dtype in zip(results, types, strict=True)]


def _scan(self: Any, operands: Any) -> list[Any]:
    types = [operand.dtype for operand in operands]
    arrays = [numpy.moveaxis(operand.handle.data, self.axis, 0) for operand in operands]
    count = len(arrays[0])
    distance = 1
    while distance < count:
        before = [numpy.roll(array, distance, 0) for array in arrays]
        combined = _combined(self, before, arrays, types)
        arrays = [
            numpy.concatenate((array[:distance], result[distance:]))
            for array, result in zip(arrays, combined, strict=True)
        ]
        distance *= 2
    return [
        self.to_tensor(numpy.moveaxis(array, 0, self.axis), dtype) for array, dtype in zip(arrays, types, strict=True)
    ]
