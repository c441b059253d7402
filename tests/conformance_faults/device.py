"""Faults of the device, its tensors and its kernels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from .planting import DEVICE, changed, fault, replace

# The device -----------------------------------------------------------------------------------------------------------


@fault("device/a_generator_of_ones_own")
def a_generator_that_is_ignored() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *args: Any, **_: Any) -> torch.Tensor:
        return x.copy_(compute(x, *args))

    replace("normal_", kernel)


@fault("device/a_seed_repeats_numbers")
def a_seed_that_is_ignored() -> None:
    def kernel(_compute: Callable[..., Any], x: torch.Tensor, *_args: Any, **_: Any) -> torch.Tensor:
        return x.copy_(torch.rand(x.shape, generator=noise))

    noise = torch.Generator()
    noise.seed()
    replace("uniform_", kernel)


@fault("device/random_numbers_are_normal")
def numbers_that_are_not_normal() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, *args: Any, **_: Any) -> torch.Tensor:
        return x.copy_(compute(x, *args).clamp(-2, 2))

    replace("normal_", kernel)


@fault("device/allocated_memory_is_counted")
def a_leaked_byte() -> None:
    original = torch.accelerator.memory_allocated
    calls = iter(range(1 << 30))
    torch.accelerator.memory_allocated = lambda *args: original(*args) + next(calls)


@fault("device/the_peak_is_kept_until_it_is_reset")
def a_peak_that_is_never_reset() -> None:
    torch.accelerator.reset_peak_memory_stats = lambda *_args: None


@fault("device/guards_change_the_device_and_back")
def a_guard_that_does_not_go_back() -> None:
    torch.accelerator.device_index.__exit__ = lambda *_args: None  # type: ignore[method-assign]


@fault("device/tensors_on_the_cpu_do_not_mix", "error")
def tensors_on_the_cpu_are_taken() -> None:
    changed("add.Tensor", lambda result: result)


@fault("device/pageable_memory_is_read_before_the_copy_returns")
def a_copy_that_reads_too_late() -> None:
    original = torch.Tensor.to
    late: list[Any] = []

    def to(x: torch.Tensor, *args: Any, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
        if not non_blocking:
            return original(x, *args, **kwargs)
        there = torch.empty_like(x, device=DEVICE)
        late.append(lambda: there.copy_(x))
        return there

    def sum_(x: torch.Tensor, *args: Any) -> torch.Tensor:
        while late:
            late.pop()()
        return total(x, *args)

    total = torch.Tensor.sum
    torch.Tensor.to, torch.Tensor.sum = to, sum_  # type: ignore[method-assign,assignment]


# Tensors --------------------------------------------------------------------------------------------------------------


@fault("tensor/views/slice")
def a_view_that_copies() -> None:
    replace("slice.Tensor", lambda compute, x, *args: compute(x, *args).contiguous().to(DEVICE))


@fault("tensor/storages_are_shared_and_resized")
def a_storage_that_loses_its_contents() -> None:
    original = torch.UntypedStorage.resize_

    def lose(storage: torch.UntypedStorage, size: int) -> Any:
        resized = original(storage, size)
        if storage.device.type == DEVICE:
            torch.tensor([], dtype=torch.uint8, device=DEVICE).set_(storage).zero_()
        return resized

    torch.UntypedStorage.resize_ = lose  # type: ignore[method-assign,assignment]


@fault("tensor/save_and_load/bfloat16")
def a_file_that_loses_the_place() -> None:
    original = torch.load
    torch.load = lambda file, **_kwargs: original(file, map_location="cpu")


@fault("tensor/assignments/*")
def an_assignment_that_is_lost() -> None:
    replace("index_put_", lambda _compute, x, *_args: x)
    replace("_index_put_impl_", lambda _compute, x, *_args: x)


# Triton ---------------------------------------------------------------------------------------------------------------


@fault("triton/dot/float32")
def tf32_in_kernels() -> None:
    import triton.language as tl
    from triton.language.semantic import TritonSemantic

    def rounded(semantic: Any, operand: Any) -> Any:
        if operand.dtype.scalar != tl.float32:
            return operand
        return semantic.cast(semantic.cast(operand, tl.float16), tl.float32)  # which has the mantissa of tf32

    def dot(semantic: Any, lhs: Any, rhs: Any, *rest: Any) -> Any:
        return original(semantic, rounded(semantic, lhs), rounded(semantic, rhs), *rest)

    original: Any = TritonSemantic.dot
    TritonSemantic.dot = dot
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()  # others do not want these kernels


@fault("triton/launches_follow_the_stream")
def a_launch_on_another_stream() -> None:
    from triton.runtime.jit import JITFunction

    original: Any = JITFunction.run
    other = torch.Stream(DEVICE)
    busy = torch.ones(1000, 1000, device=DEVICE)

    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        with other:
            busy.mm(busy)
            return original(function, *args, **kwargs)

    JITFunction.run = run
