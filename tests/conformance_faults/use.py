"""Faults of what uses operators: modules, optimizers, compiled and captured code, and the areas of smaller suites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .planting import DEVICE, changed, fault, on_the_cpu, replace

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


@fault("accumulation/rounded_once/index_add_one_dimension/bfloat16")
def sums_in_16_bits() -> None:
    changed("index_add", lambda sums_of_the_cpu: sums_of_the_cpu)


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
