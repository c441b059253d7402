"""What Inductor autotunes on mtia: which choices it has, what becomes of those that fail, what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.codecache import PyCodeCache
from torch._inductor.scheduler import Scheduler
from torch._inductor.utils import fresh_cache

import torch_mtia.memory
from tests.compiled import generated, kernels
from torch_mtia import torch_version
from torch_mtia.triton.compiler import MTIABackend

Tensor = torch.Tensor
TRITON_ONLY = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}


def on_device(*shape: int) -> Tensor:
    return torch.randn(shape).to("mtia")


def assert_close(actual: object, expected: object, tolerance: float = 1e-3) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _without_caches() -> Iterator[None]:
    with inductor_config.patch(fx_graph_cache=False, autotune_local_cache=False):
        yield


@pytest.fixture
def choices() -> Iterator[list[str]]:
    """The names of the choices that were measured, of all operators."""
    names: list[str] = []
    select_algorithm.add_feedback_saver(lambda timings, *_: names.extend(choice.name for choice in timings))
    yield names
    select_algorithm.clear_feedback_savers()


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


def test_an_exhaustive_search_ends(choices: list[str]) -> None:
    options: dict[str, Any] = {"max_autotune": True, "max_autotune_gemm_search_space": "EXHAUSTIVE"}
    a, b = on_device(20, 20), on_device(20, 20)
    result, _ = generated(torch.mm, a, b, options=options, dynamic=True)
    assert_close(result, a @ b)
    assert 0 < len(choices) <= 50


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
    with fresh_cache(), broken, inductor_config.patch(compile_threads=1):  # what is in Triton's cache is not compiled
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


def test_the_lookup_table_decides_block_sizes() -> None:
    module = "torch._inductor.runtime.triton_heuristics"
    table = {"any": {"XBLOCK": 32, "num_warps": 1, "num_stages": 1}}
    with (
        mock.patch(f"{module}.generate_lookup_hash_from_source_code", return_value="any"),
        inductor_config.patch(autotune_lookup_table=table, compile_threads=1),
    ):
        generated(lambda x: x.sin() + 2.5, on_device(500))
    kernel = next(kernel for name, kernel in vars(PyCodeCache.modules[-1]).items() if name.startswith("triton_poi"))
    assert [launcher.config.kwargs for launcher in kernel.launchers] == [{"XBLOCK": 32}]


@pytest.mark.wide  # it starts a pool of processes
def test_products_are_measured_in_another_process_on_request() -> None:
    from torch._inductor.autotune_process import AsyncAutotuner

    a, b = on_device(256, 256), on_device(256, 256)
    options = {"max_autotune": True, "pipeline_max_autotune_gemm": True, "benchmark_epilogue_fusion": False}
    result, _ = generated(lambda a, b: F.relu(a @ b), a, b, options=options)
    assert_close(result, F.relu(a @ b))
    assert AsyncAutotuner.choice_hash_to_future
