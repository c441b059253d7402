"""What Inductor autotunes on mtia: which choices it has, what becomes of those that fail, what they compute."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.scheduler import Scheduler
from torch._inductor.utils import fresh_cache

import torch_mtia.memory
from tests import autotuned
from tests.autotuned import assert_close, on_device
from tests.compiled import generated, kernels
from torch_mtia import torch_version
from torch_mtia.triton.compiler import MTIABackend

if TYPE_CHECKING:
    pass

Tensor = torch.Tensor
TRITON_ONLY = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
choices, times, _without_caches = autotuned.choices, autotuned.times, autotuned.without_caches


@pytest.mark.parametrize(("bias", "is_expanded"), [((48,), False), ((1, 48), True), ((32, 48), False)], ids=str)
def test_a_bias_of_any_shape(choices: list[str], bias: tuple[int, ...], is_expanded: bool) -> None:
    operand = on_device(*bias)
    operands = operand.expand(32, 48) if is_expanded else operand, on_device(32, 64), on_device(64, 48)
    result, _ = generated(torch.addmm, *operands, options={"max_autotune": True})
    assert_close(result, torch.addmm(*operands))
    assert any(name.startswith("triton_mm_") for name in choices)
    assert "addmm" in choices
    assert ("bias_addmm" in choices) == is_expanded


def test_operands_that_are_views() -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w.t()).relu() + (x.sin() + 1).view(32, 128)[:, :64].t() @ w[:32]

    operands = on_device(64, 64), on_device(64, 64)
    result, code = generated(product, *operands, options=TRITON_ONLY)
    assert_close(result, product(*operands))
    assert "extern_kernels.mm(" not in code


def test_tf32_has_no_effect() -> None:
    a, b = on_device(512, 512), on_device(512, 512)
    torch.set_float32_matmul_precision("high")
    try:
        result, code = generated(torch.mm, a, b, options=TRITON_ONLY)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (result.double() - a.double() @ b.double()).abs().max().item() < 1e-3
    # From 2.14 on Inductor does not ask for it on this device.
    assert ("ALLOW_TF32 : tl.constexpr = True" in code) == (torch_version.TORCH < (2, 14))


def test_an_exhaustive_search_has_more_tiles() -> None:
    offered: dict[str, list[str]] = {}

    def leave_the_operator(choices: list[Any]) -> list[Any]:
        offered[inductor_config.max_autotune_gemm_search_space] = [choice.name for choice in choices]
        return [choice for choice in choices if choice.name == "mm"]

    a, b = on_device(256, 256), on_device(256, 256)
    select_algorithm.add_preprocessing_fn(leave_the_operator)
    try:
        for space in ("DEFAULT", "EXHAUSTIVE"):
            with inductor_config.patch(max_autotune_gemm_search_space=space):
                generated(torch.mm, a, b, options={"max_autotune": True})
    finally:
        select_algorithm.clear_preprocessing_fns()
    exhaustive = 31 if torch_version.TORCH < (2, 14) else 49
    assert {space: len(names) for space, names in offered.items()} == {"DEFAULT": 7, "EXHAUSTIVE": exhaustive}


def test_an_exhaustive_search_finds_what_is_right(choices: list[str]) -> None:
    options: dict[str, Any] = {"max_autotune": True, "max_autotune_gemm_search_space": "EXHAUSTIVE"}
    a, b = on_device(20, 20), on_device(20, 20)
    result, _ = generated(torch.mm, a, b, options=options, dynamic=True)
    assert_close(result, a @ b)
    assert any(name.startswith("triton_mm_") for name in choices)


def test_long_sums_can_be_divided(choices: list[str]) -> None:
    a, b = on_device(16, 8192), on_device(8192, 16)
    result, _ = generated(torch.mm, a, b, options={"max_autotune": True})
    assert_close(result, a @ b, 1e-2)
    assert any("decompose_k" in name for name in choices)


def test_choices_that_cannot_be_compiled_lose() -> None:
    a, b = on_device(72, 88), on_device(88, 104)
    broken = mock.patch("torch_mtia.triton.compiler.MTIABackend.make_llir", side_effect=RuntimeError("broken"))
    with fresh_cache(), broken, inductor_config.patch(compile_threads=1):  # what is in Triton's cache is not compiled
        result, code = generated(torch.mm, a, b, options={"max_autotune": True})
    assert_close(result, a @ b)
    assert "extern_kernels.mm(" in code


def test_an_epilogue_that_cannot_be_compiled_is_not_fused() -> None:
    make_plan = MTIABackend.make_plan
    refused = []

    def refusing(module: Any, *arguments: Any) -> Any:
        text = str(module)
        if "tt.dot" in text and "math.cos" in text:
            refused.append(text)
            raise RuntimeError("broken")
        return make_plan(module, *arguments)

    a, b = on_device(40, 56), on_device(56, 24)
    broken = mock.patch.object(MTIABackend, "make_plan", staticmethod(refusing))
    # What computes in place is timed less the copy of its argument: the difference may be 0, and then nothing is fused.
    slow = mock.patch.object(Scheduler, "benchmark_fused_nodes", return_value=(1.0, ""))
    with fresh_cache(), broken, slow, inductor_config.patch(compile_threads=1):  # Triton's cache would hide compilation
        result, code = generated(lambda a, b: (a @ b).cos(), a, b, options=TRITON_ONLY)
    assert refused
    assert_close(result, (a @ b).cos())
    assert [name.rpartition("_")[0] for name in kernels(code)] == ["triton_tem_fused_mm", "triton_poi_fused_cos"]


def test_a_product_whose_operand_has_another_layout_in_the_end_is_the_extern_kernel() -> None:
    a, b = on_device(72, 40), on_device(40, 24)
    conflict = mock.patch.object(Scheduler, "_has_layout_conflict_for_template", return_value=True)
    slow = mock.patch.object(select_algorithm.ExternKernelCaller, "benchmark", return_value=1e6)
    with conflict, slow:
        result, code = generated(lambda a, b: a.sin() @ b, a, b, options={"max_autotune": True})
    assert_close(result, a.sin() @ b)
    assert "extern_kernels.mm(" in code


def test_two_products_that_want_one_operand_in_two_layouts() -> None:
    x = on_device(64, 64)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y @ y, y.t().contiguous() @ y

    with mock.patch.object(select_algorithm.ExternKernelCaller, "benchmark", return_value=1e6):
        result, code = generated(function, x, options={"max_autotune": True})
    assert_close(result, function(x))
    assert code.count("extern_kernels.mm(") == 1
    assert [name for name in kernels(code) if name.startswith("triton_tem")] == ["triton_tem_fused_mm_1"]


def test_nothing_is_offered_that_only_gpus_have(choices: list[str]) -> None:
    backends = "CUTLASS,CUTEDSL,CK,ATEN,TRITON"
    options = {
        "max_autotune": True,
        "max_autotune_gemm_backends": backends,
        "triton.enable_persistent_tma_matmul": True,
    }
    with inductor_config.patch(max_autotune_gemm_search_space="EXHAUSTIVE"), fresh_cache():
        generated(torch.mm, on_device(64, 64), on_device(64, 64), options=options)
    assert {name.rstrip("_0123456789") for name in choices} == {"mm", "triton_mm"}


def test_choices_are_measured_without_what_describes_their_tensors(caplog: pytest.LogCaptureFixture) -> None:
    a, b = on_device(40, 40), on_device(40, 40)
    with mock.patch("torch._inductor.autotune_process.TensorMeta.from_irnodes", side_effect=RuntimeError("broken")):
        result, _ = generated(torch.mm, a, b, options={"max_autotune": True, "max_autotune_gemm_backends": "ATEN"})
    assert_close(result, a @ b)
    assert "Constructing input/output tensor meta failed for Extern Choice" in caplog.text


def test_autotuning_keeps_within_a_limit_on_memory() -> None:
    size = 2048  # 16 MB in each of three tensors
    a, b = on_device(size, size), on_device(size, size)
    torch.mtia.empty_cache()
    fraction = (128 << 20) / torch.accelerator.get_memory_info()[1]
    torch_mtia.memory.set_per_process_memory_fraction(fraction)
    torch.mtia.reset_peak_memory_stats()
    try:
        result, _ = generated(torch.mm, a, b, options={"max_autotune": True})
    finally:
        torch_mtia.memory.set_per_process_memory_fraction(1.0)
    assert torch.mtia.max_memory_allocated() <= 96 << 20
    assert_close(result, a @ b, 1e-2)


# Kernels that are not templates ---------------------------------------------------------------------------------------


def transposed_sum(x: Tensor, y: Tensor) -> Tensor:
    return (x.t() + y).sin()


def pointwise_kernel() -> Any:
    """Of the code that was generated last, which is not the last module: a kernel may be one of its own."""
    code = next(module for module in reversed(PyCodeCache.modules) if hasattr(module, "call"))
    return next(kernel for name, kernel in vars(code).items() if name.startswith("triton_poi"))


def blocks(kernel: Any) -> list[dict[str, int]]:
    return [launcher.config.kwargs for launcher in kernel.launchers]


def test_the_lookup_table_decides_block_sizes() -> None:
    operands = on_device(96, 80), on_device(80, 96)
    block = {"XBLOCK": 4, "YBLOCK": 2}
    with fresh_cache(), inductor_config.patch(compile_threads=1):
        generated(transposed_sum, *operands)
        kernel = pointwise_kernel()
        assert blocks(kernel) != [block]
        key = triton_heuristics.generate_lookup_hash_from_source_code(str(kernel.size_hints), kernel.fn.src)
    table = {key: block | {"num_warps": 1, "num_stages": 1}}
    with fresh_cache(), inductor_config.patch(compile_threads=1, autotune_lookup_table=table):
        result, _ = generated(transposed_sum, *operands)
        assert blocks(pointwise_kernel()) == [block]
    assert_close(result, transposed_sum(*operands))


def best_config() -> dict[str, Any]:
    """The only one that was saved."""
    (saved,) = Path(cache_dir()).rglob("*.best_config")
    contents: dict[str, Any] = json.loads(saved.read_text())
    return contents


def test_block_sizes_are_measured_once_kept_on_disk_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = on_device(96, 80), on_device(80, 96)
    measured: list[int] = []
    benchmark_all_configs: Any = CachingAutotuner.benchmark_all_configs

    def counted(kernel: Any, *arguments: Any, **options: Any) -> Any:
        measured.append(len(kernel.launchers))
        return benchmark_all_configs(kernel, *arguments, **options)

    monkeypatch.setattr(CachingAutotuner, "benchmark_all_configs", counted)
    options, heuristics = {"max_autotune_pointwise": True}, triton_heuristics.__name__
    found = []
    with fresh_cache(), inductor_config.patch(autotune_local_cache=True), caplog.at_level(logging.DEBUG, heuristics):
        for _ in range(2):
            PyCodeCache.cache_clear()
            result, _ = generated(transposed_sum, *operands, options=options)
            assert_close(result, transposed_sum(*operands))
            found.append(blocks(pointwise_kernel()))
        ((best,), again) = found
        saved = best_config()
    assert again == [best]
    assert {name: saved[name] for name in best} == best
    assert len(measured) == 1
    assert measured[0] > 1
    winner = re.search(r"Best config for triton_poi\w+: (.*?), num_warps", caplog.text)
    assert winner is not None
    assert winner[1] == ", ".join(f"{name}: {size}" for name, size in best.items())


@pytest.mark.wide
def test_coordinate_descent_tries_the_neighbours_of_a_configuration() -> None:
    operands = on_device(96, 80), on_device(80, 96)
    counters.clear()
    with fresh_cache(), inductor_config.patch(autotune_local_cache=True):
        result, _ = generated(transposed_sum, *operands, options={"coordinate_descent_tuning": True})
        saved = best_config()
        (best,) = blocks(pointwise_kernel())
    assert_close(result, transposed_sum(*operands))
    assert counters["inductor"]["coordesc_tuning_bench"] > 2
    assert saved["found_by_coordesc"]
    assert {name: saved[name] for name in best} == best


# What becomes of choices ----------------------------------------------------------------------------------------------


def test_choices_that_run_out_of_memory_or_fail_lose(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark_choice: Any = select_algorithm.AlgorithmSelectorCache.benchmark_choice
    errors = itertools.cycle([torch.OutOfMemoryError("no room"), RuntimeError("broken")])

    def failing(cls: Any, choice: Any, arguments: Any) -> float:
        if choice.name.startswith("triton_mm"):
            raise next(errors)
        return float(benchmark_choice.__func__(cls, choice, arguments))

    monkeypatch.setattr(select_algorithm.AlgorithmSelectorCache, "benchmark_choice", classmethod(failing))
    a, b = on_device(136, 104), on_device(104, 72)
    with fresh_cache():
        result, code = generated(torch.mm, a, b, options={"max_autotune": True})
    assert_close(result, a @ b)
    assert 0 < times.pop("mm") < math.inf
    assert len(times) > 2
    assert set(times.values()) == {math.inf}
    assert "extern_kernels.mm(" in code
    assert not kernels(code)


def test_the_quickest_of_those_that_do_not_fail_wins(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    def rigged(_cls: Any, choice: Any, _arguments: Any) -> float:
        if "BLOCK_M=32" in choice.description:
            return 1.0
        if choice.name == "mm":
            return 2.0
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(select_algorithm.AlgorithmSelectorCache, "benchmark_choice", classmethod(rigged))
    a, b = on_device(136, 104), on_device(104, 72)
    with fresh_cache():
        result, code = generated(torch.mm, a, b, options={"max_autotune": True})
    assert_close(result, a @ b)
    assert sorted(time for time in times.values() if time < math.inf) == [1.0, 2.0]
    assert "BLOCK_M : tl.constexpr = 32\n" in code


def test_a_sum_that_is_divided_is_right_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def rigged(_cls: Any, choice: Any, _arguments: Any) -> float:
        return 1.0 if "decompose_k" in choice.name else 2.0

    monkeypatch.setattr(select_algorithm.AlgorithmSelectorCache, "benchmark_choice", classmethod(rigged))
    a, b = (on_device(*shape).bfloat16() for shape in ((16, 4096), (4096, 16)))
    result, code = generated(torch.mm, a, b, options={"max_autotune": True})
    exact = a.double() @ b.double()
    torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-2)
    assert "extern_kernels.mm(" not in code
    assert "extern_kernels.bmm" in code


def test_a_table_names_the_template_of_a_product() -> None:
    a, b = on_device(96, 80), on_device(80, 112)
    tile = {"template_id": "triton::mm", "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 16, "num_stages": 1, "num_warps": 1}
    tile |= {"EVEN_K": True, "GROUP_M": 8}
    key = "((torch.float32, [96, 80], [80, 1]), (torch.float32, [80, 112], [112, 1]))+mm"
    architecture = torch.mtia.get_device_properties(0)["architecture"]
    for table in ({key: [tile]}, {f"{architecture}+{key}": [tile]}):
        with fresh_cache(), inductor_config.patch({"lookup_table.table": table}):
            result, code = generated(torch.mm, a, b, options={"max_autotune": True})
        assert_close(result, a @ b)
        for name, size in (("M", 32), ("N", 64), ("K", 16)):
            assert f"BLOCK_{name} : tl.constexpr = {size}\n" in code


@pytest.mark.sampled(2)
@pytest.mark.parametrize("inner", [40, 8192])  # the longer sum may be divided, which is a choice of several kernels
def test_times_are_kept_on_disk(choices: list[str], inner: int) -> None:
    a, b = on_device(24, inner), on_device(inner, 24)
    with fresh_cache(), inductor_config.patch(autotune_local_cache=True):
        for _ in range(2):
            select_algorithm.get_algorithm_selector_cache().cache_clear()
            torch._dynamo.reset()
            counters.clear()
            generated(torch.mm, a, b, options={"max_autotune": True})
            measured = counters["inductor"]["select_algorithm_autotune"]
        assert measured == 0
    assert any("decompose_k" in name for name in choices) == (inner > 40)
