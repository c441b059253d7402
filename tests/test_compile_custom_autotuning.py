"""Custom operators whose implementations Inductor autotunes on mtia: for one shape, and for ranges of a size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning

from tests.compiled import generated

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


def custom_product(name: str) -> Any:
    @torch.library.custom_op(f"torch_mtia_tests::{name}", mutates_args=())
    def product(a: Tensor, b: Tensor, parts: int = 1) -> Tensor:
        return product_in_parts(a, b, parts)

    product.register_fake(lambda a, b, _parts=1: a.new_empty(a.shape[0], b.shape[1]))
    return product


def operands(rows: int, inner: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, inner).to("mtia"), torch.randn(inner, 48).to("mtia")


def assert_close(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_decompositions_compete_and_the_best_is_inlined(rounds: list[list[str]]) -> None:
    product = custom_product("product")
    configs = [CustomOpConfig(product_in_parts, parts=2), CustomOpConfig(product_in_parts, parts=4)]
    register_custom_op_autotuning(product, configs)
    a, b = operands(64, 64)
    result, _ = generated(lambda a, b: F.relu(product(a, b)), a, b, options=OPTIONS)
    assert_close(result, F.relu(a @ b))
    assert [len(names) for names in rounds if "product" in names[0]] == [3]


def test_a_function_of_the_shapes_names_the_decompositions(rounds: list[list[str]]) -> None:
    product = custom_product("product_by_shape")
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


def test_ranges_of_a_size_have_a_choice_each(rounds: list[list[str]]) -> None:
    product = custom_product("product_by_range")
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
