"""Replacements in what Inductor knows of collectives: how long they take, and how that is measured."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist

from torch_mtia import _C
from torch_mtia.backend import device_module, device_type
from torch_mtia.distributed import backend_of, symmetric_memory
from torch_mtia.scopes import Overlay, with_globals
from torch_mtia.upstream_gates.ours import is_compiled, is_ours, is_the_accelerator

log = logging.getLogger(__name__)


def timed_by_events_of_the_device(original: FunctionType) -> Callable[..., float | None]:
    def _benchmark_collective_with_cuda_events_impl(n: Any, args: Any, kwargs: Any, nruns: int) -> float | None:
        ours = with_globals(original, torch=Overlay(torch, cuda=device_module()))
        time: float | None = (ours if is_ours(args, kwargs) else original)(n, args, kwargs, nruns)
        return time

    return _benchmark_collective_with_cuda_events_impl


def workspace_on_the_device(original: FunctionType) -> Callable[..., Any]:
    """Its arguments name no device."""

    def get_symm_mem_workspace(group_name: Any, min_size: int) -> Any:
        if not is_the_accelerator():
            return original(group_name, min_size)
        return symmetric_memory.on_the_device(original)(group_name, min_size)

    return get_symm_mem_workspace


def with_a_gradient(original: FunctionType) -> Callable[..., Any]:
    """Upstream's own code for NCCL."""
    ours = with_globals(original, dist=Overlay(dist, get_backend=lambda **_: dist.Backend.NCCL))

    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return (ours if grad_output.device.type == device_type() else original)(ctx, grad_output)

    return backward


def bandwidth_of_the_device(original: Callable[[], float]) -> Callable[[], float]:
    def get_gpu_dram_gbps() -> float:
        from torch_mtia.inductor import roofline

        return roofline.memory_bandwidth() if is_compiled() else original()

    return get_gpu_dram_gbps


def bandwidth_of_a_device(original: Callable[..., float | None]) -> Callable[..., float | None]:
    def get_device_dram_gbps(device: torch.device | str | None = None) -> float | None:
        from torch_mtia.inductor import roofline

        return roofline.memory_bandwidth() if _is_asked_of_ours(device) else original(device)

    return get_device_dram_gbps


def _is_asked_of_ours(device: torch.device | str | None) -> bool:
    """Before PyTorch 2.15 no device is named."""
    return is_compiled() if device is None else torch.device(device).type == device_type()


def teraflops_of_the_device(original: Callable[..., float]) -> Callable[..., float]:
    def get_device_tflops(dtype: torch.dtype, device: torch.device | str | None = None) -> float:
        from torch_mtia.inductor import roofline

        if _is_asked_of_ours(device):
            return roofline.teraflops(dtype)
        return original(dtype) if device is None else original(dtype, device)

    return get_device_tflops


def time_of_shared_memory(original: Callable[..., float]) -> Callable[..., float]:
    def estimate_nccl_collective_runtime_impl(tensor_storage_size_bytes: int, group_size: int, coll: Any) -> float:
        """Returns milliseconds."""
        from torch_mtia.inductor import roofline

        if not is_compiled():
            return original(tensor_storage_size_bytes, group_size, coll)
        return roofline.collective_us(coll.name.lower(), tensor_storage_size_bytes, group_size) / 1e3

    return estimate_nccl_collective_runtime_impl


def bytes_that_outweigh_the_latency(original: Callable[..., int]) -> Callable[..., int]:
    def compute_min_saturation_bytes(group_size: int, coll: Any, target_efficiency: float = 0.9) -> int:
        """Returns the bytes of a collective that take that part of its time."""
        from torch_mtia.inductor import roofline

        if not is_compiled():
            return original(group_size, coll, target_efficiency)
        if group_size <= 1:
            return 0
        per_byte_us = roofline.collective_us(coll.name.lower(), 1 << 30, group_size) / (1 << 30)
        return int(target_efficiency / (1 - target_efficiency) * roofline.COLLECTIVE_LATENCY_US / per_byte_us)

    return compute_min_saturation_bytes


def choices_timed_on_the_device(original: Any) -> Any:
    """Of those for an operator that communicates: all ranks time them together, and agree on the mean."""

    def benchmark_collective_choice(cls: Any, choice: Any, autotune_args: Any) -> float:
        from torch._inductor import config

        inputs, output = autotune_args.get_benchmark_tensors(cls._is_extern(choice)).unpack()
        if not is_ours(output):
            return float(original.__func__(cls, choice, autotune_args))
        output.zero_()

        def milliseconds(runs: int) -> float:
            dist.barrier()
            start, end = (device_module().Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(runs):
                choice.benchmark_collective(*inputs, out=output)
            end.record()
            _C._wait_unobserved(-1)
            return float(start.elapsed_time(end)) / runs

        groups = [group for group in map(backend_of, dist.distributed_c10d._world.pg_map) if group is not None]
        timeouts = [group.options._timeout for group in groups]
        try:
            for group in groups:  # a choice that fails on one rank only would have the others wait
                group._set_default_timeout(timedelta(seconds=config.collective_benchmark_timeout))
            milliseconds(max(1, config.inductor_default_autotune_warmup))
            mean = torch.tensor([milliseconds(config.collective_benchmark_nruns)], device=output.device)
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            return mean.item()
        except Exception:
            log.warning("%s cannot be timed and is not chosen", getattr(choice, "name", choice), exc_info=True)
            return float("inf")
        finally:
            for group, timeout in zip(groups, timeouts, strict=True):
                group._set_default_timeout(timeout)

    return classmethod(benchmark_collective_choice)
