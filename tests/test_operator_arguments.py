"""Arguments that PyTorch's database of operators has beside plain inputs: out=, wrong ones, and those without data.

What the device does with them is what the CPU does. Exceptions are listed with their reasons.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from torch_mtia.conformance.database import CPU, full_name, moved

MOST_SAMPLES = 1  # the first ones are the plain ones; more take minutes
DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool)

# How an argument `out` may differ from what is computed.
OUTS: dict[str, Callable[[torch.Tensor, torch.device], torch.Tensor]] = {
    "fits": lambda result, device: torch.zeros_like(result, device=device),
    "has strides": lambda result, device: torch.zeros(*result.shape, 2, dtype=result.dtype, device=device)[..., 0],
    "is empty": lambda result, device: torch.zeros(0, dtype=result.dtype, device=device),
    "has another shape": lambda result, device: torch.zeros(*result.shape, 1, 2, dtype=result.dtype, device=device),
    "is wider": lambda result, device: torch.zeros(result.shape, dtype=torch.complex128, device=device),
    "is narrower": lambda result, device: torch.zeros(result.shape, dtype=torch.int8, device=device),
}
NOT_OUT = {
    "nansum": "the CPU takes an out argument of any dtype, and fails in the middle for some",
    "nanmean": "made of nansum",
    "triangular_solve": "the CPU leaves an empty result transposed",
    "nonzero": "the database has its result as a tuple",
}
RANDOM = re.compile("bernoulli|cauchy|geometric|multinomial|normal|rand|uniform|dropout|_lowrank|exponential")
NOT_COMPARED = ("jiterator", "empty", "sparse")
NOT_FAKE = {
    "as_strided.partial_views": "reads memory beyond its argument",
    "tensor_split": "wants an argument on the CPU, on every device",
    "nn.functional.rms_norm": "upstream's meta function keeps the strides of an empty result",
    "nn.functional.max_unpool2d": "upstream's meta function forgets channels-last, on the CPU too",
    "nn.functional.max_unpool2d.grad": "upstream's meta function forgets channels-last, on the CPU too",
    "einsum": "upstream's meta function forgets the order of its operands, on the CPU too",
    "nonzero_static": "upstream's meta function gives an empty result other strides",
}
RAISES_NOTHING = {  # with what upstream expects of them, on the CPU too
    "clamp_max": "an exception that upstream's CPU device does not raise",
    "clamp_min": "an exception that upstream's CPU device does not raise",
    "__rmod__": "an exception of an operand that is no tensor",
    "__rpow__": "an exception of an operand that is no tensor",
    "__rsub__": "an exception of an operand that is no tensor",
}


def rows(infos: list[OpInfo], skipped: dict[str, str]) -> list[Any]:
    def marks(name: str) -> list[Any]:
        return [pytest.mark.skip(reason=skipped[name])] if name in skipped else []

    return [pytest.param(info, marks=marks(full_name(info)), id=full_name(info)) for info in infos]


def dtype_of(info: OpInfo) -> torch.dtype | None:
    return next((dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu")), None)


def is_compared(info: OpInfo) -> bool:
    """Without random numbers, and not one that compiles CUDA code or returns memory as it finds it."""
    name = full_name(info)
    return dtype_of(info) is not None and not RANDOM.search(name) and not name.startswith(NOT_COMPARED)


def call_with_out(info: OpInfo, sample: Any, make: str, device: torch.device) -> Any:
    """The results, whether they kept their memory, and their strides; or the type of the exception."""
    inputs, args, kwargs = moved(
        pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (sample.input, sample.args, sample.kwargs)), device
    )
    expected = info.op(inputs, *args, **kwargs)
    leaves = pytree.tree_leaves(expected)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    outs = [OUTS[make](leaf, device) for leaf in leaves]
    pointers = [out.data_ptr() for out in outs]
    try:
        info.op(inputs, *args, **kwargs, out=outs[0] if isinstance(expected, torch.Tensor) else tuple(outs))
        if device.type == "mtia":
            torch.mtia.synchronize()
    except (RuntimeError, TypeError, IndexError) as error:
        return type(error)
    return [(out.cpu(), out.data_ptr() == pointer, out.stride()) for out, pointer in zip(outs, pointers, strict=True)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", rows([i for i in op_db if i.supports_out and is_compared(i)], NOT_OUT))
def test_out_is_treated_as_on_the_cpu(device: torch.device, info: OpInfo) -> None:
    dtype = dtype_of(info)
    for sample in islice(info.sample_inputs("cpu", dtype), MOST_SAMPLES):
        for make in OUTS:
            expected = call_with_out(info, sample, make, CPU)
            actual = call_with_out(info, sample, make, device)
            if isinstance(expected, type) and isinstance(actual, type):
                continue  # which exception it is differs where the device checks first what the CPU finds later
            torch.testing.assert_close(
                actual, expected, equal_nan=True, msg=functools.partial("out {}: {}".format, make)
            )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", rows([i for i in op_db if i.error_inputs_func is not None], RAISES_NOTHING))
def test_wrong_arguments_raise_at_the_call(device: torch.device, info: OpInfo) -> None:
    for wrong in info.error_inputs(str(device)):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            info.op(sample.input, *sample.args, **sample.kwargs)
    if device.type == "mtia":
        torch.mtia.synchronize()  # nothing is left


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", rows([i for i in op_db if is_compared(i)], NOT_FAKE))
def test_shapes_and_strides_are_those_of_the_meta_functions(device: torch.device, info: OpInfo) -> None:
    """torch.compile and torch.export rely on it."""
    for sample in islice(info.sample_inputs("cpu", dtype_of(info)), MOST_SAMPLES):
        inputs, args, kwargs = moved((sample.input, sample.args, sample.kwargs), device)
        try:
            mode = FakeTensorMode()
            fake = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (inputs, args, kwargs))
            with mode:
                expected = info.op(fake[0], *fake[1], **fake[2])
        except (DataDependentOutputException, DynamicOutputShapeException, NotImplementedError):
            continue  # has no meta function
        actual = info.op(inputs, *args, **kwargs)
        for result, meta in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
            if isinstance(result, torch.Tensor):
                assert (result.shape, result.stride(), result.dtype) == (meta.shape, meta.stride(), meta.dtype)
                assert result.device == meta.device
