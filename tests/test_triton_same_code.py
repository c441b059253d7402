"""Configurations that differ in what only a GPU has are compiled once, and an autotuner measures them once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import num_warps as warps_of_the_kernel

from torch_mtia.triton import machine

WARPS = [1, 2, 4, 8]


@pytest.fixture(autouse=True)
def no_kernel_is_compiled(tmp_path: Path) -> Iterator[None]:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path)
        yield


@triton.jit
def fill(out, size, value, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, value, offsets < size)


@triton.jit
def fill_with_warps(out, size):
    offsets = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(out + offsets, warps_of_the_kernel(), offsets < size)


@triton.jit
def fill_with_stages(out, size, num_stages: tl.constexpr):
    offsets = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(out + offsets, num_stages, offsets < size)


class Measurement:
    """Tunes a kernel, and counts the measurements: the last one is the quickest."""

    def __init__(self, kernel: Any, configs: list[triton.Config], **options: Any) -> None:
        self.count = 0
        self.tuned = triton.autotune(configs, key=["size"], do_bench=self._measure, **options)(kernel)

    def _measure(self, launch: Callable[[], None], **_options: Any) -> list[float]:
        launch()
        self.count += 1
        return [1 / self.count]

    def launch(self, *args: Any, size: int = 64) -> list[float]:
        out = torch.zeros(size, device="mtia")
        self.tuned[(triton.cdiv(size, 64),)](out, size, *args)
        return out.tolist()


def of_warps(**meta: Any) -> list[triton.Config]:
    return [triton.Config(meta, num_warps=warps) for warps in WARPS]


@contextlib.contextmanager
def counted(name: str) -> Iterator[mock.Mock]:
    with mock.patch.object(machine, name, side_effect=getattr(machine, name)) as function:
        yield function


def test_the_same_code_is_made_once() -> None:
    fresh = triton.JITFunction(fill.fn)
    out = torch.zeros(77, device="mtia")
    with counted("optimize") as optimize, counted("assembly") as assembly, counted("assemble") as assemble:
        kernels = [fresh[(2,)](out, 77, 5.0, BLOCK=64, num_warps=warps, num_stages=warps) for warps in WARPS]
    assert [function.call_count for function in (optimize, assembly, assemble)] == [1, 1, 1]
    assert [kernel.metadata.num_warps for kernel in kernels] == WARPS
    assert len({kernel.kernel for kernel in kernels}) == 1
    assert out.tolist() == [5.0] * 77


def test_other_options_make_other_code() -> None:
    fresh = triton.JITFunction(fill.fn)
    out = torch.zeros(64, device="mtia")
    kernels = [fresh[(1,)](out, 64, 5.0, BLOCK=64, arch=arch) for arch in ("x86-64", "x86-64-v3")]
    assert kernels[0].asm["llir"] != kernels[1].asm["llir"]


def test_configurations_of_the_same_code_are_measured_once() -> None:
    measurement = Measurement(fill, [*of_warps(BLOCK=32), *of_warps(BLOCK=64)])
    assert measurement.launch(3.0) == [3.0] * 64
    assert measurement.count == 2
    assert measurement.tuned.best_config.kwargs == {"BLOCK": 64}
    assert list(measurement.tuned.configs_timings.values()) == [[1.0]] * 4 + [[0.5]] * 4


def test_other_arguments_are_measured_again() -> None:
    measurement = Measurement(fill, of_warps(BLOCK=64))
    measurement.launch(3.0, size=64)
    measurement.launch(3.0, size=63)
    assert measurement.count == 2


def test_a_kernel_that_asks_for_its_warps_is_measured_with_each_number() -> None:
    measurement = Measurement(fill_with_warps, of_warps())
    assert measurement.launch() == [8.0] * 64
    assert measurement.count == 4


def test_a_parameter_of_the_kernel_is_no_option() -> None:
    configs = [triton.Config({}, num_stages=stages) for stages in (2, 3)]
    measurement = Measurement(fill_with_stages, configs)
    assert measurement.launch() == [3.0] * 64
    assert measurement.count == 2


def test_hooks_see_each_configuration() -> None:
    seen = []

    def hook(arguments: dict[str, Any], **_others: Any) -> None:
        seen.append(arguments.get("num_warps"))

    measurement = Measurement(fill, of_warps(BLOCK=64), pre_hook=hook)
    measurement.launch(3.0)
    assert measurement.count == 4
    assert set(WARPS) <= set(seen)
    configs = [triton.Config({"BLOCK": 64}, num_warps=warps, pre_hook=hook) for warps in WARPS]
    measurement = Measurement(fill, configs)
    measurement.launch(3.0)
    assert measurement.count == 4


def test_heuristics_see_each_configuration() -> None:
    kernel = triton.heuristics({"value": lambda arguments: float(arguments["num_warps"])})(fill)
    measurement = Measurement(kernel, of_warps(BLOCK=64))
    assert measurement.launch() == [8.0] * 64
    assert measurement.count == 4


def test_what_does_not_compile_is_not_chosen() -> None:
    @triton.jit
    def refused(out, size, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK < 64)
        tl.store(out + tl.arange(0, BLOCK), size, tl.arange(0, BLOCK) < size)

    measurement = Measurement(refused, [*of_warps(BLOCK=64), *of_warps(BLOCK=32)])
    measurement.launch(size=20)
    assert measurement.count == 1
    assert measurement.tuned.best_config.kwargs == {"BLOCK": 32}


def test_a_report_for_gpus_has_each_configuration() -> None:
    from torch_mtia.portability.launches import Recording

    recording = Recording()
    recording.start()
    try:
        measurement = Measurement(triton.JITFunction(fill.fn), of_warps(BLOCK=64))
        measurement.launch(3.0)
    finally:
        recording.stop()
    assert measurement.count == 4
    assert [found.options["num_warps"] for found in recording.specializations] == WARPS
