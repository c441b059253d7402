"""Faults to plant in the device: importing this module plants the one that CONFORMANCE_FAULT names.

Each is one thing that a device may do wrong, and names the tests of the conformance suite of which one must fail, and
how. tests/test_conformance_faults.py runs them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_mtia import environment

DEVICE = environment.device_type()
KEY = "MTIA" if DEVICE == "mtia" else "PrivateUse1"
ATEN = torch.library.Library("aten", "IMPL")


class Fault(NamedTuple):
    tests: str  # a pattern
    kind: str  # how they fail
    plant: Callable[[], None]


FAULTS: dict[str, Fault] = {}


def fault(tests: str, kind: str = "wrong") -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(plant: Callable[[], None]) -> Callable[[], None]:
        FAULTS[plant.__name__] = Fault(tests, kind, plant)
        return plant

    return register


def on_the_cpu(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, value)


def replace(operator: str, kernel: Callable[..., Any]) -> None:
    """`kernel` takes the function that computes on the CPU, and the operator's arguments."""
    name, _, overload = operator.partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")

    def computed(*args: Any, **kwargs: Any) -> Any:
        host = {key: torch.device("cpu") if key == "device" else value for key, value in kwargs.items()}
        return function(*on_the_cpu(args), **on_the_cpu(host))

    ATEN.impl(operator, lambda *args, **kwargs: kernel(computed, *args, **kwargs), KEY)


def changed(operator: str, change: Callable[[Any], Any]) -> None:
    """The operator's result is another one."""

    def kernel(compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = change(compute(*args, **kwargs))
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(DEVICE), result)

    replace(operator, kernel)


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


# Modules and optimizers -----------------------------------------------------------------------------------------------


@fault("modules/forward_and_backward/nn.TransformerEncoderLayer/float32/eval")
def evaluation_is_training() -> None:
    torch.nn.functional.dropout = lambda x, *_args, **_kwargs: x * (2 if x.device.type == DEVICE else 1)


@fault("modules/move_and_back/nn.BatchNorm1d")
def buffers_are_left_behind() -> None:
    def kept(module: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        buffers = dict(module._buffers)
        original(module, function, recurse)
        module._buffers.update(buffers)
        return module

    original: Any = torch.nn.Module._apply
    torch.nn.Module._apply = kept  # type: ignore[method-assign]


@fault("optimizers/ten_steps/AdamW/fused")
def an_optimizer_that_loses_its_last_parameter() -> None:
    def kernel(_compute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        lists = [value[:-1] if isinstance(value, list) else value for value in args]
        host = on_the_cpu(lists)
        torch._fused_adamw_(*host, **on_the_cpu(kwargs))
        for ours, theirs in zip(lists, host, strict=True):
            for here, there in zip(*((x if isinstance(x, list) else []) for x in (ours, theirs)), strict=True):
                here.copy_(there)

    replace("_fused_adamw_", kernel)


@fault("optimizers/ten_steps/SGD/foreach")
def a_learning_rate_that_is_rounded() -> None:
    original = torch._foreach_add_

    def rounded(tensors: Any, others: Any, *args: Any, alpha: float = 1.0) -> Any:
        on_device = tensors[0].device.type == DEVICE
        return original(tensors, others, *args, alpha=alpha * 1.001 if on_device else alpha)

    torch._foreach_add_ = rounded  # type: ignore[assignment]


# Compiled and captured ------------------------------------------------------------------------------------------------


@fault("compile/changed_shapes_compile_anew")
def guards_that_are_forgotten() -> None:
    torch._dynamo.config.assume_static_by_default = False
    torch._dynamo.config.automatic_dynamic_shapes = True
    original = torch.compile
    torch.compile = lambda *args, **kwargs: original(*args, **(kwargs | {"dynamic": True}))


@fault("compile/operators/tan/float32")
def a_decomposition_that_is_wrong() -> None:
    from torch._inductor import decomposition

    decomposition.decompositions[torch.ops.aten.tan.default] = lambda x: x.sin() / x.cos() * 1.01


@fault("compile/mutated_arguments")
def mutations_that_are_lost() -> None:
    original: Any = torch.compile

    def without(function: Any = None, **kwargs: Any) -> Any:
        compiled = original(function, **kwargs)
        return lambda *args: compiled(*(x.clone() if isinstance(x, torch.Tensor) else x for x in args))

    torch.compile = without  # type: ignore[assignment]


@fault("graphs/replay/atan/float32")
def a_replay_that_does_nothing() -> None:
    torch.accelerator.Graph.replay = lambda *_args: None  # type: ignore[method-assign]


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


# Areas ----------------------------------------------------------------------------------------------------------------


@fault("accelerator/a_device_that_is_not_there_is_refused/memory_stats", "error")
def a_device_that_is_not_there_is_served() -> None:
    original = torch.accelerator.memory_stats
    torch.accelerator.memory_stats = lambda *_args: original(0)


@fault("allocator/a_loop_needs_no_more_memory")
def memory_of_results_that_is_kept() -> None:
    kept: list[torch.Tensor] = []

    def kernel(compute: Callable[..., Any], *args: Any) -> torch.Tensor:
        kept.append(compute(*args).to(DEVICE))
        return kept[-1]

    for operator in ("mul.Tensor", "mm", "exp", "add.Tensor", "relu"):
        replace(operator, kernel)


@fault("random/continuous/exponential-float32")
def numbers_of_another_rate() -> None:
    replace("exponential_", lambda compute, x, *args, **_: x.copy_(compute(x, *args) * 1.03))


@fault("generators/no_number_comes_twice")
def numbers_that_repeat() -> None:
    original = torch.randint

    def randint(low: int, high: int, size: Any, **kwargs: Any) -> torch.Tensor:
        return original(low, high, size, **(kwargs | {"generator": torch.Generator(DEVICE).manual_seed(0)}))

    torch.randint = randint  # type: ignore[assignment]


@fault("data/pinned_memory")
def memory_that_is_not_pinned() -> None:
    torch.Tensor.pin_memory = lambda x, *_args: x.clone()  # type: ignore[method-assign]


@fault("files/views_of_one_storage_still_share_it/True")
def views_that_are_loaded_apart() -> None:
    original = torch.load
    torch.load = lambda *args, **kwargs: {name: x.clone() for name, x in original(*args, **kwargs).items()}


@fault("sparse/coo/norm")
def entries_that_are_not_added() -> None:
    def first(sparse: torch.Tensor) -> torch.Tensor:
        places, values = sparse._indices()[:, :1], sparse._values()[:1]
        return torch.sparse_coo_tensor(places, values, sparse.shape, is_coalesced=True)

    original: Any = torch.Tensor.coalesce

    def coalesce(sparse: Any) -> torch.Tensor:
        return (first if sparse.device.type == DEVICE else original)(sparse)

    torch.Tensor.coalesce = coalesce  # type: ignore[assignment,method-assign]


@fault("layouts/channels_last/relu")
def a_memory_format_that_is_lost() -> None:
    changed("relu", lambda result: result.contiguous())


@fault("errors/values/gather", "error")
def places_that_are_wrapped() -> None:
    def kernel(compute: Callable[..., Any], x: torch.Tensor, dim: int, index: torch.Tensor, **kwargs: Any) -> Any:
        return compute(x, dim, index % x.shape[dim], **kwargs).to(DEVICE)

    replace("gather", kernel)


@fault("transforms/parts_and_conjugates_are_views")
def conjugates_that_are_copies() -> None:
    torch.Tensor.conj = torch.Tensor.conj_physical  # type: ignore[method-assign]


@fault("autocast/narrows/mm-bfloat16")
def an_autocast_that_casts_nothing() -> None:
    original = torch.autocast

    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return original(device_type, *args, **(kwargs | {"enabled": device_type != DEVICE}))

    torch.autocast = autocast  # type: ignore[assignment,misc]


@fault("determinism/deterministic/index_add")
def sums_in_another_order_each_time() -> None:
    def kernel(
        compute: Callable[..., Any], x: torch.Tensor, dim: int, index: torch.Tensor, source: Any, **_: Any
    ) -> Any:
        order = torch.randperm(len(index), generator=chance)
        x.copy_(compute(x, dim, index.cpu()[order], source.cpu()[order]))
        return x

    chance = torch.Generator()
    replace("index_add_", kernel)


@fault("profiler/work_of_the_device")
def a_profile_without_the_device() -> None:
    from torch.profiler import ProfilerActivity, profile

    original: Any = profile.__init__

    def of_the_host(made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **(kwargs | {"activities": [ProfilerActivity.CPU]}))

    profile.__init__ = of_the_host  # type: ignore[assignment,method-assign]


@fault("models/five_steps/SGD-cnn")
def a_step_that_is_lost() -> None:
    original: Any = torch.optim.SGD.step
    calls = iter(range(1 << 30))

    def step(optimizer: Any, *args: Any) -> Any:
        on_device = optimizer.param_groups[0]["params"][0].device.type == DEVICE
        return None if on_device and next(calls) == 3 else original(optimizer, *args)

    torch.optim.SGD.step = step  # type: ignore[assignment,method-assign]


@fault("distributed/reduces/2ranks-all_reduce-float32/SUM")
def a_rank_that_is_left_out() -> None:
    import torch.distributed as dist

    original = dist.all_reduce

    def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == 0:
            tensor.zero_()
        return original(tensor, *args, **kwargs)

    dist.all_reduce = all_reduce


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


if planted := os.environ.get("CONFORMANCE_FAULT"):
    FAULTS[planted].plant()
