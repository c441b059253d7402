"""Writes yaml/dtypes.yaml: runs what PyTorch's own tests run, with every dtype, and notes what kernels answer.

A kernel is asked about dtypes that the table of the build does not have. What it takes is added, unless it refuses the
same dtypes in another sample; what is in the table stays. To start anew, empty the file and build first.
`make dtypes` runs this with the built package.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils import _pytree as pytree

from tools.codegen import dtypes
from tools.codegen.operator_dtypes import DEVICE, FOREACH, moved, quiet, run_fused, samples
from torch_mtia import _C

DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8),
    *(torch.int8, torch.int16, torch.complex64, torch.complex128, torch.complex32),
    *(torch.uint16, torch.uint32, torch.uint64),
]
MOST_SAMPLES = 64


def _convert(value: Any, of: torch.dtype, to: torch.dtype, *, skip: Any = None) -> Any:
    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf is not skip and leaf.dtype == of:
            return leaf.detach().to(to).requires_grad_(leaf.requires_grad and to.is_floating_point)
        return to if leaf == of and isinstance(leaf, torch.dtype) else leaf

    return pytree.tree_map(convert, value)


def _variants(arguments: Any, dtype: torch.dtype) -> Iterator[Any]:
    """The arguments; with indices of 32 bits; in 16 bits with parameters in single precision."""
    yield arguments
    if any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.int64 for leaf in pytree.tree_leaves(arguments)):
        yield _convert(arguments, torch.int64, torch.int32)
    if dtype in (torch.float16, torch.bfloat16):
        yield _convert(arguments, dtype, torch.float32, skip=arguments[0])


def _differentiate(result: Any) -> None:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])


def _call(function: Callable[..., Any], arguments: Any) -> None:
    with contextlib.suppress(Exception):  # a sample that does not run says nothing
        _differentiate(function(arguments[0], *arguments[1], **arguments[2]))


def _run_operator(info: Any, dtype: torch.dtype) -> None:
    differentiable = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    every = list(samples(info, dtype, differentiable))
    for sample in every[:: len(every) // MOST_SAMPLES + 1]:
        for arguments in _variants(moved((sample.input, sample.args, sample.kwargs)), dtype):
            _call(info.op, arguments)
            detached = pytree.tree_map(
                lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, arguments
            )
            _call(info.op, detached)
            if info.inplace_variant is not None:
                _call(info.inplace_variant, detached)


def _run_foreach(info: Any, dtype: torch.dtype) -> None:
    for sample in samples(info, dtype, False, num_input_tensors=[1, 3]):
        for function in (info.method_variant, info.inplace_variant):
            if function is not None:
                _call(function, moved((sample.input, sample.args, sample.kwargs)))


def _run_module(info: Any, dtype: torch.dtype) -> None:
    for training in (True, False):
        for sample in info.module_inputs_func(info, "cpu", dtype, True, training):
            arguments = moved((sample.constructor_input.args, sample.constructor_input.kwargs))
            inputs = moved((sample.forward_input.args, sample.forward_input.kwargs))
            with contextlib.suppress(Exception):
                module = info.module_cls(*arguments[0], **arguments[1]).to(DEVICE, dtype).train(training)
                _differentiate(module(*inputs[0], **inputs[1]))


def _run_optimizer(info: Any, dtype: torch.dtype) -> None:
    for sample in info.optim_inputs_func(device="mtia", dtype=dtype):
        for kind in ({"foreach": True}, {"foreach": False}, {"fused": True}):
            with contextlib.suppress(Exception):
                parameters = [torch.ones(3, 4, dtype=dtype, device=DEVICE, requires_grad=True) for _ in range(2)]
                for parameter in parameters:
                    parameter.grad = torch.ones_like(parameter)
                optimizer = info.optim_cls(parameters, **sample.kwargs, **kind)
                optimizer.step()
                optimizer.step()


def _run_indexing(dtype: torch.dtype) -> None:
    tensor = torch.ones(2, 2, 2, 2, device=DEVICE).to(dtype)
    for index_dtype in (torch.int64, torch.int32, torch.bool, torch.uint8):
        index = torch.zeros(2, device=DEVICE).to(index_dtype)
        for count in (1, 2, 3, 4):
            keys: list[Any] = [(index,) * count, (slice(None), *(index,) * (count - 1))]
            for key in keys:
                with contextlib.suppress(Exception):
                    _ = tensor[key]
                for value in (1, torch.ones((), device=DEVICE).to(dtype)):
                    with contextlib.suppress(Exception):
                        tensor[key] = value
                for accumulate in (True, False):
                    with contextlib.suppress(Exception):
                        tensor.index_put_(key, torch.ones((), device=DEVICE).to(dtype), accumulate)


def _run_quantized(dtype: torch.dtype) -> None:
    """Products for which PyTorch has no samples."""
    weight = torch.ones(8, 64, dtype=torch.int8, device=DEVICE)
    x, scales = torch.ones(2, 64, device=DEVICE).to(dtype), torch.ones(8, device=DEVICE).to(dtype)
    runs: list[Callable[[], Any]] = [
        lambda: torch._int_mm(x, weight.t()),
        lambda: torch._int_mm(x, weight.t(), out=torch.empty(2, 8, dtype=torch.int32, device=DEVICE)),
        lambda: torch._weight_int8pack_mm(x, weight, scales),
    ]
    for run in runs:
        with contextlib.suppress(Exception):
            run()


def measure() -> dict[str, set[str]]:
    """The signatures with which kernels that were asked work, by kernel."""
    taken: dict[str, set[str]] = defaultdict(set)
    refused: dict[str, set[str]] = defaultdict(set)
    runs: list[tuple[Callable[[Any, torch.dtype], None], Any]] = [
        *((_run_operator, info) for info in op_db),
        *((_run_foreach, info) for info in FOREACH),
        *((_run_module, info) for info in module_db),
        *((_run_optimizer, info) for info in optim_db),
        (lambda _, dtype: _run_indexing(dtype), None),
        (lambda _, dtype: run_fused(dtype), None),
        (lambda _, dtype: _run_quantized(dtype), None),
    ]
    _C._record_kernel_answers(True)
    with quiet():
        for number, (run, info) in enumerate(runs):
            for dtype in DTYPES:
                with contextlib.suppress(Exception):
                    run(info, dtype)
                with contextlib.suppress(Exception):
                    torch.mtia.synchronize()
            for kernel, signature, is_refusal in _C._take_kernel_answers():
                if signature:
                    (refused if is_refusal else taken)[kernel].add(signature)
            sys.stderr.write(f"\r{number + 1} of {len(runs)}")
    _C._record_kernel_answers(False)
    return {kernel: rest for kernel, signatures in taken.items() if (rest := signatures - refused[kernel])}


if __name__ == "__main__":
    known = dtypes.load()
    for name, signatures in measure().items():
        known[name] = known.get(name, set()) | signatures
    dtypes.save(known)
