"""Faults of operators and their gradients."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .planting import DEVICE, FAULTS, Fault, changed, fault, replace

# Operators ------------------------------------------------------------------------------------------------------------


@fault("operators/forward/atan/float32")
def a_wrong_value() -> None:
    changed("atan", lambda result: result * 1.001)


@fault("operators/forward/atan/float32")
def a_wrong_dtype() -> None:
    changed("atan", lambda result: result.double())


@fault("operators/forward/atan/float32")
def a_wrong_size() -> None:
    changed("atan", lambda result: result[None])


@fault("operators/forward/atan/float32")
def a_lost_write() -> None:
    def lose(result: torch.Tensor) -> torch.Tensor:
        if result.numel() > 1:
            result.view(-1)[-1] = 0
        return result

    changed("atan", lose)


@fault("operators/strides/atan/float32")
def wrong_strides() -> None:
    def transpose(result: torch.Tensor) -> torch.Tensor:
        return result.mT.contiguous().mT if result.dim() > 1 else result

    changed("atan", transpose)


@fault("operators/noncontiguous/atan/float32")
def strides_that_are_ignored() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        dense = x if x.numel() < 2 else x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())
        return compute(dense).to(DEVICE)

    replace("atan", kernel)


@fault("operators/noncontiguous/atan/float32")
def an_offset_of_what_is_contiguous_that_is_ignored() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        return compute(x.as_strided(x.shape, x.stride(), 0) if x.is_contiguous() else x).to(DEVICE)

    replace("atan", kernel)


@fault("operators/noncontiguous/atan/float32")
def a_wrong_value_without_dimensions() -> None:
    changed("atan", lambda result: result if result.dim() else result * 1.01)


@fault("operators/forward/bincount/int64")
def a_result_that_stays_on_the_cpu() -> None:
    replace("bincount", lambda compute, *args, **kwargs: compute(*args, **kwargs))


@fault("operators/forward/atan/bfloat16")
def a_result_of_16_bits_on_another_device() -> None:
    replace("atan", lambda compute, x: compute(x).to(f"{DEVICE}:1"))


@fault("operators/forward/nn.functional.silu/bfloat16")
def a_result_of_16_bits_that_is_wider() -> None:
    changed("silu", lambda result: result.float())


@fault("operators/forward/linspace/float32")
def a_wrong_value_of_what_has_no_argument() -> None:
    def kernel(compute: Callable[..., Any], *args: Any, out: torch.Tensor) -> Any:
        result = compute(*args, out=torch.empty(0, dtype=out.dtype))
        return out.resize_(result.shape).copy_(result * 1.01)

    replace("linspace.out", kernel)


@fault("operators/out/atan/float32")
def a_resized_output_without_a_warning() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *, out: torch.Tensor) -> Any:
        result = compute(x, out=torch.empty(0, dtype=out.dtype))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return out.resize_(result.shape).copy_(result)

    replace("atan.out", kernel)


@fault("operators/forward/atan/float32", kind="hang")
def a_process_that_does_not_end() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        atexit.register(time.sleep, 1000)
        return compute(x).to(DEVICE)

    replace("atan", kernel)


def clobber(dtype: torch.dtype) -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        result = compute(x).to(DEVICE)
        if x.dtype == dtype and x.numel() > 1:
            x.mul_(1.01)
        return result

    replace("atan", kernel)


@fault("operators/forward/atan/float32")
def a_clobbered_input() -> None:
    clobber(torch.float32)


@fault("operators/forward/atan/bfloat16")
def a_clobbered_input_of_16_bits() -> None:
    clobber(torch.bfloat16)


@fault("operators/inplace/atan/float32")
def a_result_in_place_that_is_elsewhere() -> None:
    changed("atan_", lambda result: result)


@fault("operators/out/atan/float32")
def an_output_that_is_not_written() -> None:
    replace("atan.out", lambda _compute, _x, *, out: out)


@fault("operators/out/atan/float32")
def a_stale_result_after_resize() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        result = compute(x, out=torch.empty(0, dtype=out.dtype))
        if out.shape == result.shape:
            out.copy_(result)
        else:
            out.resize_(result.shape)
        return out

    replace("atan.out", kernel)


@fault("operators/out_errors/atan/float32")
def an_output_of_a_wrong_dtype_is_taken() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return out.resize_(x.shape).copy_(compute(x, out=torch.empty(0)).to(out.dtype))

    replace("atan.out", kernel)


@fault("operators/extremal/atan/float32")
def nan_becomes_a_number() -> None:
    changed("atan", lambda result: result.nan_to_num())


@fault("operators/empty/atan/float32", "error")
def no_elements_are_an_error() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        if x.numel() == 0:
            raise RuntimeError("an empty launch")
        return compute(x).to(DEVICE)

    replace("atan", kernel)


@fault("operators/dtypes/atan")
def a_dtype_that_is_missing() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        if x.dtype == torch.int16:
            raise NotImplementedError('"atan" not implemented for Short')
        return compute(x).to(DEVICE)

    replace("atan", kernel)


@fault("operators/broadcasting/atan2/float32")
def broadcasting_takes_the_first_row() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        narrow = y[:1] if y.dim() and y.shape[0] > 1 and x.shape != y.shape else y
        return compute(x, narrow).expand(torch.broadcast_shapes(x.shape, y.shape)).to(DEVICE)

    replace("atan2", kernel)


@fault("operators/errors/cat")
def wrong_sizes_are_taken() -> None:
    def kernel(compute: Callable[..., Any], tensors: list[torch.Tensor], dim: int = 0) -> Any:
        try:
            return compute(tensors, dim).to(DEVICE)
        except (IndexError, RuntimeError):
            return tensors[0].clone()

    replace("cat", kernel)


@fault("operators/forward/mm/float32")
def tf32_in_the_place_of_float32() -> None:
    def rounded(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)

    def kernel(compute: Callable[..., Any], a: torch.Tensor, b: torch.Tensor) -> Any:
        if a.dtype == torch.float32:
            a, b = (rounded(x.cpu().contiguous()) for x in (a, b))
        return compute(a, b).to(DEVICE)

    replace("mm", kernel)


def of_some(operator: str, is_hit: Callable[[torch.Tensor], bool], wrong: Callable[[torch.Tensor], Any]) -> None:
    """The operator gives `wrong` for arguments that are hit."""
    replace(operator, lambda compute, x: (wrong(compute(x)) if is_hit(x) else compute(x)).to(DEVICE))


@fault("operators/large/atan/float32")
def wrong_beyond_65536_elements() -> None:
    of_some("atan", lambda x: x.numel() > 65536, lambda result: result.flatten().index_fill(0, torch.tensor(65536), 9))


@fault("operators/forward/atan/float64")
def float32_in_the_place_of_float64() -> None:
    of_some("atan", lambda x: x.dtype == torch.float64, lambda result: result.float().double())


@fault("operators/noncontiguous/atan/float32")
def an_offset_that_is_ignored() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        return compute(x.as_strided(x.shape, x.stride(), 0)).to(DEVICE)

    replace("atan", kernel)


@fault("operators/noncontiguous/atan/float32")
def wrong_where_elements_are_repeated() -> None:
    of_some("atan", lambda x: x.numel() > 1 and 0 in x.stride(), torch.zeros_like)


@fault("operators/noncontiguous/sinh/float32")
def an_order_in_memory_that_is_ignored() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        is_turned = x.dim() > 1 and x.mT.is_contiguous() and not x.is_contiguous()
        return (compute(x.mT).reshape(x.shape) if is_turned else compute(x)).to(DEVICE)

    replace("sinh", kernel)


@fault("operators/noncontiguous/amin/float32")
def a_reduction_of_repeated_elements() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (compute(x, *args, **kwargs) + (x.numel() > 1 and 0 in x.stride())).to(DEVICE)

    replace("amin", kernel)


@fault("operators/noncontiguous/atan2/float32")
def a_second_argument_of_repeated_elements() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        return (compute(x, y) + (y.numel() > 1 and 0 in y.stride())).to(DEVICE)

    replace("atan2", kernel)


@fault("operators/rows/amax/float32")
def a_reduction_of_no_more_than_16_bits_count() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        some = x if x.numel() <= 65536 else x.reshape(-1)[:65536]
        return compute(some, *args, **kwargs).to(DEVICE)

    replace("amax", kernel)


@fault("operators/rows/log_softmax/float32")
def a_row_that_is_longer_than_a_group_of_threads() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, dim: int, to_float: bool) -> Any:
        result = compute(x, dim, to_float)
        if x.size(dim) > 1024:
            result.narrow(dim, 1024, x.size(dim) - 1024).zero_()
        return result.to(DEVICE)

    replace("_log_softmax", kernel)


@fault("operators/indices/index_select/float32")
def indices_of_32_bits_that_are_read_as_64() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
        index = index if index.dtype == torch.int64 else torch.zeros_like(index)
        return compute(x, dim, index).to(DEVICE)

    replace("index_select", kernel)


@fault("operators/indices/scatter_add/float32")
def an_index_that_counts_once() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, dim: int, index: torch.Tensor, values: Any) -> Any:
        last = torch.zeros(x.shape).scatter(dim, index.cpu(), values.cpu())
        return (x.cpu() + last if index.unique().numel() < index.numel() else compute(x, dim, index, values)).to(DEVICE)

    replace("scatter_add", kernel)


@fault("operators/out/hypot/float32")
def an_output_whose_order_in_memory_is_ignored() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        result = compute(x, y, out=torch.empty(0, dtype=out.dtype))
        is_turned = out.shape == result.shape and result.dim() > 1 and out.mT.is_contiguous()
        out.resize_(result.shape).copy_(result.reshape(out.mT.shape).mT if is_turned else result)
        return out

    replace("hypot.out", kernel)


@fault("operators/inplace_forms/cosh/float32")
def repeated_elements_are_changed() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        dense = x[..., :1] if x.dim() and 0 in x.stride() else x
        dense.copy_(compute(x.cpu()))
        return x

    replace("cosh_", kernel)


@fault("operators/inplace_forms/nextafter/float32")
def what_is_changed_is_not_also_the_other_argument() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = compute(x.cpu(), y)
        return x.copy_(result + 1 if x.data_ptr() == y.data_ptr() else result)

    replace("nextafter_", kernel)


@fault("operators/promotion/pow/float32")
def a_whole_number_to_a_fraction() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        is_mixed = not x.is_floating_point() and y.is_floating_point()
        return compute(x, y.trunc() if is_mixed else y).to(DEVICE)

    replace("pow.Tensor_Tensor", kernel)


def clear_between(x: torch.Tensor) -> None:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    if extent > x.numel() > 0:
        x.as_strided((extent,), (1,)).zero_()


@fault("operators/inplace/atan/float32")
def a_write_in_place_between_the_elements() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        result = compute(x.cpu())
        clear_between(x)
        return x.copy_(result)

    replace("atan_", kernel)


@fault("operators/out/atan/float32")
def an_output_between_the_elements() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        clear_between(out)
        return out.resize_(x.shape).copy_(compute(x, out=torch.empty(0, dtype=out.dtype)))

    replace("atan.out", kernel)


@fault("operators/out/atan/float32")
def an_output_past_its_end() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        out.resize_(x.shape).copy_(compute(x, out=torch.empty(0, dtype=out.dtype)))
        end = out.storage_offset() + out.numel()
        if out.is_contiguous() and out.untyped_storage().nbytes() > end * out.element_size():
            out.as_strided((1,), (1,), end).zero_()
        return out

    replace("atan.out", kernel)


@fault("tensor/two_dtypes/mul")
def the_dtype_of_the_first() -> None:
    replace("mul.Tensor", lambda compute, x, y: compute(x, y.to(x.dtype) if y.dim() else y).to(DEVICE))


@fault("tensor/numbers_to_the_last_bit/NaN in amax")
def a_maximum_that_skips_nan() -> None:
    replace("amax", lambda compute, x, *args: compute(x.nan_to_num(-torch.inf), *args).to(DEVICE))


@fault("tensor/numbers_to_the_last_bit/zeros with a sign in neg")
def a_zero_that_loses_its_sign() -> None:
    changed("neg", lambda result: result + 0)


@fault("tensor/numbers_to_the_last_bit/large integers in products")
def integers_of_53_bits() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, y: Any) -> Any:
        return compute(x.double(), torch.as_tensor(y).double()).to(x.dtype).to(DEVICE)

    replace("mul.Tensor", kernel)


@fault("tensor/numbers_to_the_last_bit/a count of more than a byte")
def a_count_in_a_byte() -> None:
    changed("cumsum", lambda result: result % 256)


@fault("tensor/large_tensors/sort")
def a_sort_of_blocks() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, **kwargs: Any) -> Any:
        values, places = compute(x, **kwargs)
        return values.roll(int(values.numel() > 65536)).to(DEVICE), places.to(DEVICE)

    replace("sort.stable", kernel)


@fault("device/work_on_the_second_device/elementwise", "error")
def a_result_on_the_first_device() -> None:
    replace("mul.Tensor", lambda compute, x, y: compute(x, y).to(torch.device(DEVICE, 0)))


@fault("device/work_on_the_second_device/elementwise")
def a_second_device_that_computes_nothing() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, y: torch.Tensor) -> Any:
        result = compute(x, y)
        return (result if x.device.index == 0 else torch.zeros_like(result)).to(x.device)

    replace("mul.Tensor", kernel)


@fault("device/another_process/spawn")
def a_process_that_dies_when_it_ends() -> None:
    atexit.register(lambda: multiprocessing.parent_process() and os.abort())


# Gradients ------------------------------------------------------------------------------------------------------------


def lose_a_sum() -> None:
    """For a gradient of ones the right result is 0, and this one is not far from it."""

    def kernel(_compute: Callable[..., Any], gradient: torch.Tensor, output: torch.Tensor, *_: Any) -> torch.Tensor:
        return (gradient - gradient.mean(-1, keepdim=True)) * output

    replace("_softmax_backward_data", kernel)


def swap_gradients() -> None:
    """Of ones nobody would see it."""

    def kernel(_compute: Callable[..., Any], gradient: torch.Tensor, output: torch.Tensor, dim: int, *_: Any) -> Any:
        swapped = gradient.flip(-1)
        return swapped - output.exp() * swapped.sum(dim, keepdim=True)

    replace("_log_softmax_backward_data", kernel)


FAULTS["a_wrong_gradient"] = Fault("autograd/backward/softmax/float32", "wrong", lose_a_sum)
FAULTS["a_wrong_gradient_by_finite_differences"] = Fault("autograd/gradcheck/softmax/float64", "error", lose_a_sum)
FAULTS["a_wrong_gradient_of_a_module"] = Fault(
    "modules/forward_and_backward/nn.Softmax/float32/train", "wrong", lose_a_sum
)
FAULTS["a_wrong_gradient_in_a_graph"] = Fault("graphs/replay/log_softmax/float32", "wrong", swap_gradients)


# Tests that look away -------------------------------------------------------------------------------------------------


@fault("device/copies_between_devices", "skip")
def a_capability_that_vanishes() -> None:
    torch.accelerator.device_count = lambda: 1


@fault("operators/forward/atan/float32", "skip")
def samples_that_the_cpu_refuses() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if info.name == "atan":
            info.sample_inputs_func = lambda *_args, **_kwargs: iter(())


@fault("operators/forward/atan/float32", "crash")
def a_crash() -> None:
    replace("atan", lambda *_args: os.abort())


@fault("operators/forward/atan/float32", "hang")
def a_hang() -> None:
    def kernel(*_args: Any) -> torch.Tensor:
        while True:
            pass

    replace("atan", kernel)


@fault("autograd/backward/atan/float32")
def a_wrong_value_where_a_gradient_is_wanted() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor) -> Any:
        result = compute(x).to(DEVICE)
        return result * 1.01 if torch.is_grad_enabled() and x.requires_grad else result

    replace("atan", kernel)
