"""Custom operators whose implementations Inductor autotunes on mtia: for one shape, and for ranges of a size."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.autotune_process import AsyncAutotuner, AutotuneProcessPool
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.utils import fresh_cache

from tests.compiled import generated, kernels

Tensor = torch.Tensor
OPTIONS: dict[str, Any] = {"max_autotune": True}


@pytest.fixture(autouse=True)
def _without_caches() -> Iterator[None]:
    with inductor_config.patch(fx_graph_cache=False, autotune_local_cache=False):
        yield


@pytest.fixture
def rounds() -> Iterator[list[list[str]]]:
    """The names of the choices that were measured against each other, each time."""
    measured: list[list[str]] = []
    select_algorithm.add_feedback_saver(lambda timings, *_: measured.append([choice.name for choice in timings]))
    yield measured
    select_algorithm.clear_feedback_savers()


def product_in_parts(a: Tensor, b: Tensor, parts: int = 2) -> Tensor:
    return torch.stack([x @ y for x, y in zip(a.chunk(parts, 1), b.chunk(parts), strict=True)]).sum(0)


def a_name(of: str) -> str:
    """Of an operator that no other has had in this process: Inductor keeps what it measured of operators."""
    return f"torch_mtia_tests::{of}_{uuid.uuid4().hex}"


def custom_product() -> Any:
    @torch.library.custom_op(a_name("product"), mutates_args=())
    def product(a: Tensor, b: Tensor, parts: int = 1) -> Tensor:
        return product_in_parts(a, b, parts)

    product.register_fake(lambda a, b, _parts=1: a.new_empty(a.shape[0], b.shape[1]))
    return product


def operands(rows: int, inner: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, inner).to("mtia"), torch.randn(inner, 48).to("mtia")


def assert_close(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_decompositions_compete_with_the_operator(rounds: list[list[str]]) -> None:
    product = custom_product()
    configs = [CustomOpConfig(product_in_parts, parts=2), CustomOpConfig(product_in_parts, parts=4)]
    register_custom_op_autotuning(product, configs)
    a, b = operands(64, 64)
    result, _ = generated(lambda a, b: F.relu(product(a, b)), a, b, options=OPTIONS)
    assert_close(result, F.relu(a @ b))
    assert [len(names) for names in rounds if "product" in names[0]] == [3]


@pytest.mark.unwatched("kernels that are watched are slower than the operator")
def test_the_code_has_the_best_decomposition_and_not_the_operator() -> None:
    @torch.library.custom_op(a_name("slow_sum"), mutates_args=())
    def slow_sum(x: Tensor) -> Tensor:
        for _ in range(20):
            x = x + 0
        return x + 1

    slow_sum.register_fake(torch.empty_like)

    def quick_sum(x: Tensor) -> Tensor:
        return x + 1

    register_custom_op_autotuning(slow_sum, [CustomOpConfig(quick_sum)])
    x = torch.randn(1 << 18).to("mtia")
    result, code = generated(lambda x: F.relu(slow_sum(x)), x, options=OPTIONS)
    assert torch.equal(result, F.relu(x + 1))
    assert "torch.ops.torch_mtia_tests" not in code
    assert kernels(code)
    assert "extern_kernels." not in code


def test_choices_may_be_measured_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    replays = 0
    replay = torch.accelerator.Graph.replay

    def counted(graph: Any) -> None:
        nonlocal replays
        replays += 1
        replay(graph)

    monkeypatch.setattr(torch.accelerator.Graph, "replay", counted)
    product = custom_product()
    register_custom_op_autotuning(product, [CustomOpConfig(product_in_parts, parts=2)], benchmark_with_cudagraphs=True)
    a, b = operands(64, 64)
    result, _ = generated(product, a, b, options=OPTIONS)
    assert_close(result, a @ b)
    assert replays > 2


def test_a_function_of_the_shapes_names_the_decompositions(rounds: list[list[str]]) -> None:
    product = custom_product()
    seen: list[torch.device] = []

    def configs(tensors: dict[str, Tensor]) -> list[CustomOpConfig]:
        seen.append(tensors["a"].device)
        return [CustomOpConfig(product_in_parts, parts=k) for k in (2, 4, 8) if tensors["a"].shape[1] % k == 0]

    register_custom_op_autotuning(product, config_generator=configs)
    for inner, count in ((8, 4), (4, 3)):
        rounds.clear()
        a, b = operands(16, inner)
        result, _ = generated(product, a, b, options=OPTIONS)
        assert_close(result, a @ b)
        assert [len(names) for names in rounds if "product" in names[0]] == [count]
    assert {device.type for device in seen} == {"mtia"}


def test_a_second_compilation_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    benchmark = AlgorithmSelectorCache.benchmark

    def counted(self: Any, choices: Any, *args: Any, **options: Any) -> Any:
        measured.append(len(choices))
        return benchmark(self, choices, *args, **options)

    monkeypatch.setattr(AlgorithmSelectorCache, "benchmark", counted)
    product = custom_product()
    register_custom_op_autotuning(product, [CustomOpConfig(product_in_parts, parts=2)])
    a, b = operands(64, 64)
    with fresh_cache(), inductor_config.patch(autotune_local_cache=True):
        result, _ = generated(product, a, b, options=OPTIONS)
        assert_close(result, a @ b)
        assert measured
        measured.clear()
        torch._dynamo.reset()
        result, _ = generated(product, a, b, options=OPTIONS)
    assert_close(result, a @ b)
    assert not measured


def test_ranges_of_a_size_have_a_choice_each(rounds: list[list[str]]) -> None:
    product = custom_product()
    register_custom_op_autotuning(
        product,
        [CustomOpConfig(product_in_parts, parts=2), CustomOpConfig(product_in_parts, parts=4)],
        dispatch_on={"tensor_name": "a", "dim": 0, "unbounded_size": 400},
        split_points=[50, 200],
    )
    a, b = operands(100, 16)
    torch._dynamo.mark_dynamic(a, 0)
    torch._dynamo.reset()
    function = torch.compile(product, options=OPTIONS)
    assert_close(function(a, b), a @ b)  # type: ignore[no-untyped-call]
    measured = len(rounds)
    assert [len(names) for names in rounds if "product" in names[0]] == [3, 3, 3]
    for rows in (10, 300):
        a, b = operands(rows, 16)
        assert_close(function(a, b), a @ b)  # type: ignore[no-untyped-call]
    assert len(rounds) == measured


def test_custom_operators_are_chosen_while_the_pipeline_is_on(
    rounds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before lowering goes on: the decomposition that is the quickest is inlined."""
    monkeypatch.setattr(AutotuneProcessPool, "_shutdown_for_inactivity", False)
    monkeypatch.setattr(AsyncAutotuner, "choice_hash_to_future", {})
    product = custom_product()
    register_custom_op_autotuning(product, [CustomOpConfig(product_in_parts, parts=2)])
    options = OPTIONS | {"pipeline_max_autotune_gemm": True, "benchmark_epilogue_fusion": False}
    a, b = operands(16, 16)
    result, _ = generated(lambda a, b: product(a, b) @ b.t(), a, b, options=options)
    assert_close(result, a @ b @ b.t())
    assert [len(names) for names in rounds if "product" in names[0]] == [2]
    assert any("triton_mm" in choice for choice in AsyncAutotuner.choice_hash_to_future)
