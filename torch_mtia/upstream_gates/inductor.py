"""Replacements in Inductor and before it: keys of caches, merging, choices, templates, lowering, block sizes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._ordered_set import OrderedSet

from torch_mtia.backend import device_module, device_type
from torch_mtia.scopes import Overlay, with_globals
from torch_mtia.upstream_gates.ours import is_ours, is_the_accelerator, lowered_graph


def times_of_the_device(original: Callable[[], Path]) -> Any:
    def get_local_cache_path() -> Path:
        from torch_mtia.inductor.cache_key import identity

        path = original()
        if not is_the_accelerator():
            return path
        return path.with_name(hashlib.sha256(f"{path.name} {identity()}".encode()).hexdigest())

    return staticmethod(get_local_cache_path)


def views_in_the_key(original: Callable[..., None]) -> Callable[..., None]:
    """Adds the offsets of views of one storage to the key: if one is written, they become views of one input, at
    offsets that are in the code."""

    @functools.wraps(original)
    def __init__(self: Any, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        original(self, gm, example_inputs, *args, **kwargs)
        places: dict[Any, list[tuple[int, str, str]]] = {}
        for index, value in enumerate(example_inputs):
            if (storage := _storage_on_mtia(value)) is not None:
                offset, size = value.storage_offset(), value.untyped_storage().nbytes()
                places.setdefault(storage, []).append((index, str(offset), str(size)))
        if shared := [views for views in places.values() if len(views) > 1]:
            self.views_of_one_storage = shared

    return __init__


def results_apart(original: Callable[..., torch.fx.Graph]) -> Callable[..., torch.fx.Graph]:
    """Upstream keeps a node whose value lies in the storage of an output. For the time of its work a node with several
    values, of which one does, has that value alone."""

    @functools.wraps(original)
    def fx_graph_cse(fx_g: torch.fx.Graph, *args: Any, **kwargs: Any) -> torch.fx.Graph:
        returned = {_storage_on_mtia(node.meta.get("val")) for node in fx_g.output_node().all_input_nodes} - {None}
        for node in fx_g.find_nodes(op="call_function", target=operator.getitem):
            if _storage_on_mtia(node.meta.get("val")) in returned:
                meta = node.all_input_nodes[0].meta
                meta.setdefault("values", meta["val"])
                meta["val"] = node.meta["val"]
        graphs = [fx_g]
        try:
            graphs.append(original(fx_g, *args, **kwargs))
        finally:
            for node in itertools.chain.from_iterable(graph.nodes for graph in graphs):
                if "values" in node.meta:
                    node.meta["val"] = node.meta.pop("values")
        return graphs[-1]

    return fx_graph_cse


def _storage_on_mtia(value: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    if not isinstance(value, torch.Tensor) or value.device.type != device_type() or not torch._C._has_storage(value):
        return None
    return StorageWeakRef(value.untyped_storage())


def choices_for_mtia(original: Callable[[], Any] | None) -> Callable[[], Any]:
    from torch_mtia import inductor

    return original or inductor.choices_for_mtia  # the original: somebody's own


def environment_with_autoload(original: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
    @functools.wraps(original)
    def python_subprocess_env() -> dict[str, str]:
        variables = original()
        return variables | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"} if is_the_accelerator() else variables

    return python_subprocess_env


def is_big_device(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def is_big_gpu(index_or_device: Any = 0) -> bool:
        if getattr(index_or_device, "type", None) == device_type():
            return True
        return original(index_or_device)

    return is_big_gpu


def number_of_processors(original: Callable[[], int]) -> Callable[[], int]:
    @functools.lru_cache
    def get_max_num_sms() -> int:
        if is_the_accelerator():
            return int(device_module().get_device_properties()["multi_processor_count"])
        return original()

    return get_max_num_sms


def the_other_gpu(original: Any) -> Callable[[], str]:
    """Upstream asserts that there is one at most. Where there are two, it is asked without ours."""

    @functools.wraps(original)
    def get_gpu_type() -> str:
        from torch._inductor.utils import GPU_TYPES

        others = [name for name in GPU_TYPES if name != device_type()]
        if not any(getattr(torch, name).is_available() for name in others):
            return original()  # type: ignore[no-any-return]
        return str(with_globals(inspect.unwrap(original), GPU_TYPES=others)())

    return get_gpu_type


def autotuned_on_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    def cached_autotune(
        size_hints: Any, configs: Any, triton_meta: dict[str, Any], heuristic_type: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if triton_meta["device"].type == device_type():
            from torch_mtia.inductor import block_sizes
            from torch_mtia.inductor.autotuner import MTIAAutotuner, MTIADebugAutotuner

            configs = block_sizes.chosen(configs, heuristic_type, size_hints, kwargs.get("inductor_meta") or {})
            kwargs |= {"caching_autotuner_cls": MTIAAutotuner, "debug_autotuner_cls": MTIADebugAutotuner}
        return original(size_hints, configs, triton_meta, heuristic_type, *args, **kwargs)

    return cached_autotune


def log_of_mtia(original: Any) -> Callable[..., None]:
    device = SimpleNamespace(
        get_device_name=lambda: str(device_module().get_device_properties()["name"]),
        device_count=lambda: device_module().device_count(),
    )
    of_mtia = with_globals(original, torch=Overlay(torch, cuda=device))

    @functools.wraps(original)
    def log_autotuning_results(self: Any, name: str, input_nodes: list[Any], *args: Any) -> None:
        is_ours = any(node.get_device().type == device_type() for node in input_nodes)
        (of_mtia if is_ours else original)(self, name, input_nodes, *args)

    return log_autotuning_results


def split_keys(original: Callable[..., int]) -> Callable[..., int]:
    def get_split_k(batch: int, heads: int, keys: int) -> int:
        if lowered_graph() is None:
            return original(batch, heads, keys)
        processors = int(device_module().get_device_properties()["multi_processor_count"])
        return max(1, 2 * processors // max(batch * heads, 1))

    return get_split_k


def atomic_additions_are_slow(original: Callable[..., bool]) -> Callable[..., bool]:
    """Compare-and-swap takes 9 ns; the operator's kernel adds 4M elements in 6 ms, the generated one in 37 ms."""

    def needs_fallback_due_to_atomic_add_limitations(dtype: torch.dtype) -> bool:
        return original(dtype) or lowered_graph() is not None

    return needs_fallback_due_to_atomic_add_limitations


def keeps_to_buffer_limit(original: Callable[..., bool]) -> Callable[..., bool]:
    def fallback_node_due_to_unsupported_type(node: torch.fx.Node, allow_cpu_inputs: bool = True) -> bool:
        from torch_mtia.inductor import eager_sums, guardrails

        if original(node, allow_cpu_inputs) or eager_sums.is_left_whole(node):
            return True
        graph = lowered_graph()
        return graph is not None and guardrails.prepare_operator(node, graph.env)

    return fallback_node_due_to_unsupported_type


def compiled_in_the_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    """Adds eager_sums.OPTIONS to those of the program. Upstream calls this again, with the options in force."""
    from torch._inductor import config

    from torch_mtia.inductor.eager_sums import OPTIONS
    from torch_mtia.numerics_mode import numerics

    @functools.wraps(original)
    def compile_fx(model: Any, example_inputs: Any, *args: Any, config_patches: Any = None, **kwargs: Any) -> Any:
        if numerics.current() != "default" and not config_patches:
            nodes = getattr(getattr(model, "graph", None), "nodes", ())
            if is_ours(list(example_inputs), list(nodes)):
                config_patches = {name: value for name, value in OPTIONS.items() if getattr(config, name) != value}
        return original(model, example_inputs, *args, config_patches=config_patches, **kwargs)

    return compile_fx


def without_eager_sums(original: Callable[..., Any]) -> Callable[..., Any]:
    from torch_mtia.inductor import eager_sums

    return eager_sums.without_listed(original)


def lowered_product_of_another_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    def tuned_bmm(mat1: Any, mat2: Any, out_dtype: torch.dtype, **options: Any) -> Any:
        if not is_ours(mat1, mat2):
            return original(mat1, mat2, out_dtype, **options)
        from torch_mtia.inductor.graph_pass import lowered_product

        return lowered_product(mat1, mat2, out_dtype)

    return tuned_bmm


def check_nan_within_mask(original: Callable[..., None]) -> Callable[..., None]:
    def check_nan(buffer: Any, var: Any) -> None:
        from torch._inductor.virtualized import V

        masks: OrderedSet[Any] = OrderedSet()
        if lowered_graph() is not None:
            masks.update(tree.mask_name() for tree in V.kernel.range_trees if not tree.is_reduction)
            masks.update(var.mask_vars)
            V.kernel.filter_masks(masks)
        if not masks:
            original(buffer, var)
            return
        written = type(buffer)()
        original(written, var)
        call = written.getvalue().strip().removesuffix(")")
        buffer.writeline(f"{call}, mask={' & '.join(map(str, masks))})")

    return check_nan


def _as_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    mode = getattr(tensor, "fake_mode", contextlib.nullcontext())
    with mode:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")


def convolution_of_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Asks what a convolution of tensors that lie so would be on the CPU."""

    @functools.wraps(original)
    def of_cpu(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if getattr(input, "fake_device", input.device).type == device_type():
            input, args, kwargs = pytree.tree_map_only(torch.Tensor, _as_on_cpu, (input, args, kwargs))
        return original(input, *args, **kwargs)

    return of_cpu
