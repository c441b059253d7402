"""Replacements for mode="reduce-overhead": see torch_mtia/inductor/graphs.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_mtia.backend import device_type


def one_device_may_be_mtia(original: Callable[..., str | None]) -> Callable[..., str | None]:
    def check_multiple_devices_or_any_cpu_nodes(device_node_mapping: dict[torch.device, torch.fx.Node]) -> str | None:
        reason = original(device_node_mapping)  # and takes the devices out that do not count
        return None if [device.type for device in device_node_mapping] == [device_type()] else reason

    return check_multiple_devices_or_any_cpu_nodes


def graphs_on_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    def cudagraphify(model: Any, static_input_idxs: Sequence[int] = (), **kwargs: Any) -> Callable[[Any], Any]:
        from torch_mtia.inductor import graphs

        chosen: list[Callable[[Any], Any]] = []

        def run(inputs: Any) -> Any:
            if not chosen:
                chosen.append(
                    graphs.graphify(model, graphs.traits(static_input_idxs, **kwargs))
                    if graphs.is_on_mtia(inputs)
                    else original(model, static_input_idxs, **kwargs)
                )
            return chosen[0](inputs)

        return run

    return cudagraphify


def backward_without_trees(original: Callable[..., None]) -> Callable[..., None]:
    def maybe_handle_backward_generation(compiled_graph: Any, boxed_forward_device_index: Any) -> None:
        if device_type() not in compiled_graph.device_types:
            original(compiled_graph, boxed_forward_device_index)

    return maybe_handle_backward_generation
