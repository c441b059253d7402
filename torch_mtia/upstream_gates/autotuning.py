"""Replacements in autotuning: how the choices for an operator are compared."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as TooLong
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from typing import Any

import torch

from torch_mtia import _C
from torch_mtia.backend import device_module, device_type
from torch_mtia.graphs import is_stream_capturing
from torch_mtia.upstream_gates.ours import is_the_accelerator

# What is within so much of the shortest time is measured again, in turns, and so are the operators: what slows one of
# two that are measured one after the other slows them both then.
CLOSE = 1.5
TURNS = 3
TURNS_ELSEWHERE = 1  # in another process, which is alone with them
# A template must be so much quicker than the operator's own kernel. Less is noise, and templates are compiled once more
# for each process and shape.
GAIN = 1.05

Timings = dict[Any, float]


def measured_in_turns(original: Any) -> Any:
    @classmethod  # type: ignore[misc]
    @functools.wraps(original.__func__)
    def benchmark_choices(cls: Any, choices: Any, autotune_args: Any, is_collective: bool = False) -> Timings:
        def measure(choices: Any) -> Timings:
            timings: Timings = original.__func__(cls, choices, autotune_args, is_collective)
            return timings

        output = autotune_args.get_benchmark_tensors(True).output_tensor
        if is_collective or output is None or output.device.type != device_type():
            return measure(choices)
        if is_stream_capturing(device_module().current_stream()):
            # Upstream would take every choice for one that fails, and keep that on disk.
            raise RuntimeError("choices cannot be measured while a graph is captured: call the compiled code before")
        return compared_in_turns(measure(choices), measure, cls._is_extern)

    return benchmark_choices


def measured_in_turns_elsewhere(original: Any) -> Any:
    """In a process of its own; but here if the operands are not just numbers, as the blocks of a mask: the other
    process fills them with what it likes."""

    @classmethod  # type: ignore[misc]
    @functools.wraps(original.__func__)
    def benchmark_in_sub_process(
        cls: Any, choices: Any, input_nodes: Any, layout: Any, input_gen_fns: Any, hint_override: int | None = None
    ) -> Timings:
        def measure(choices: Any) -> Timings:
            timings: Timings = original.__func__(cls, choices, input_nodes, layout, input_gen_fns, hint_override)
            return timings

        if layout.device.type != device_type():
            return measure(choices)
        if input_gen_fns:
            here: Timings = cls.benchmark_in_current_process(
                choices, input_nodes, layout, input_gen_fns, hint_override=hint_override
            )
            return here
        return compared_in_turns(measure(choices), measure, cls._is_extern, TURNS_ELSEWHERE)

    return benchmark_in_sub_process


def measured_in_turns_in_the_pipeline(original: Any) -> Any:
    @classmethod  # type: ignore[misc]
    @functools.wraps(original.__func__)
    def get_results(cls: Any, choices: Any, inputs_key: str) -> Timings:
        from torch._inductor.select_algorithm import AlgorithmSelectorCache

        timings: Timings = original.__func__(cls, choices, inputs_key)
        if any(choice.layout.device.type != device_type() for choice in timings):
            return timings

        def measure(choices: list[Any]) -> Timings:
            return {choice: _Measurement(choice.bmreq).result() for choice in choices}

        return compared_in_turns(timings, measure, AlgorithmSelectorCache._is_extern, TURNS_ELSEWHERE)

    return get_results


def compared_in_turns(
    timings: Timings,
    measure: Callable[[list[Any]], Timings],
    is_operator: Callable[[Any], bool],
    turns: int = TURNS,
) -> Timings:
    close = _close_to_the_best(timings)
    again = [choice for choice, time in timings.items() if choice in close or (is_operator(choice) and time < math.inf)]
    for _ in range(turns if len(again) > 1 else 0):
        for choice, time in measure(again).items():
            timings[choice] = min(timings[choice], time)
    return with_operators_where_little_is_gained(timings, is_operator)


def with_operators_where_little_is_gained(timings: Timings, is_operator: Callable[[Any], bool]) -> Timings:
    """Returns the times, in which templates that are hardly quicker than the operator's kernel have its time and follow
    it."""
    operators = {choice: time for choice, time in timings.items() if is_operator(choice)}
    best = min(operators.values(), default=math.inf)
    templates = {
        choice: best if best / GAIN < time < best else time
        for choice, time in timings.items()
        if choice not in operators
    }
    return {**operators, **templates}


def _close_to_the_best(timings: Timings) -> list[Any]:
    best = min(timings.values(), default=math.inf)
    return [choice for choice, time in timings.items() if math.isfinite(time) and time <= CLOSE * best]


def replayed_from_a_graph(original: Callable[..., float]) -> Callable[..., float]:
    @functools.wraps(original)
    def benchmark_gpu_with_cuda_graph(self: Any, _callable: Callable[[], Any], *args: Any, **kwargs: Any) -> float:
        from torch_mtia.inductor.benchmark import benchmark

        if not is_the_accelerator():
            return original(self, _callable, *args, **kwargs)
        _callable()
        _C._wait_unobserved(-1)
        graph = torch.accelerator.Graph()
        with graph:
            _callable()
        time = benchmark(self, graph.replay)
        assert isinstance(time, float)
        return time

    return benchmark_gpu_with_cuda_graph


class _Measurement:
    """Stands for the future of a measurement in the other process, which begins when its result is asked for. One that
    fails, ends the process or takes too long is infinite."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def result(self) -> float:
        return self._time

    @functools.cached_property
    def _time(self) -> float:
        from torch._inductor import config
        from torch._inductor.autotune_process import AutotuneProcessPool, run_autotune_in_subprocess

        instance = AutotuneProcessPool.get_instance()
        instance.warm_up().result()  # the start of the process does not count
        limit = config.max_autotune_subproc_result_timeout_seconds
        measurement = instance.submit(run_autotune_in_subprocess, self._request)
        try:
            return float(measurement.result(limit))
        except TooLong:
            reason = f"took more than {limit} seconds (max_autotune_subproc_result_timeout_seconds)"
        except BrokenProcessPool:
            reason = "ended the process that measured it"
        for process in list((instance.pool._processes or {}).values()):
            process.kill()
        AutotuneProcessPool.shutdown_instance()  # the next measurement starts another process
        warnings.warn(f"The choice '{self._request.kernel_name}' {reason}. It will be ignored.", stacklevel=2)
        return math.inf


def measured_while_nothing_is_compiled(original: Any) -> Any:
    @classmethod  # type: ignore[misc]
    @functools.wraps(original.__func__)
    def start(cls: Any, choices: Any, inputs_key: str) -> None:
        for choice in choices:
            if choice.layout.device.type == device_type() and getattr(choice, "bmreq", None) is not None:
                key = cls.get_choice_hash(choice, inputs_key)
                cls.choice_hash_to_future.setdefault(key, _Measurement(choice.bmreq))
        original.__func__(cls, choices, inputs_key)

    return start


def chosen_at_once_where_the_choice_is_needed(original: Any) -> Any:
    """Before lowering goes on, unless the scheduler is to choose."""

    @functools.wraps(original)
    def choose(
        self: Any, name: str, choices: Any, input_nodes: Any, layout: Any, input_gen_fns: Any = None, **options: Any
    ) -> Any:
        from torch._inductor import config
        from torch._inductor.autotune_process import use_pipelined_autotuning

        is_left_to_the_scheduler = (
            input_gen_fns is None
            and options.get("return_multi_template")
            and (config.max_autotune or config.max_autotune_gemm)
        )
        is_ours = layout.device.type == device_type()
        if not is_ours or is_left_to_the_scheduler or not use_pipelined_autotuning():
            return original(self, name, choices, input_nodes, layout, input_gen_fns, **options)
        with config.patch(pipeline_max_autotune_gemm=False):
            return original(self, name, choices, input_nodes, layout, input_gen_fns, **options)

    return choose


def limited_as_configured(original: Any) -> Any:
    """Configuration is per thread: the threads that wait for a process see that of the caller."""

    @functools.wraps(original)
    def benchmark(self: Any, choices: Iterable[Any]) -> Timings:
        if any(choice.layout.device.type != device_type() for choice in choices):
            timings: Timings = original(self, choices)
            return timings
        choices = list(choices)
        contexts = [copy_context() for _ in choices]
        times = self.executor.map(lambda context, choice: context.run(self.target, choice), contexts, choices)
        return dict(zip(choices, times, strict=True))

    return benchmark
