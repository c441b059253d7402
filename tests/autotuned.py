"""What the tests of autotuning share: operands, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm

from torch_mtia.backend import device_type

Tensor = torch.Tensor


def on_device(*shape: int) -> Tensor:
    return torch.randn(shape).to(device_type())


def assert_close(actual: object, expected: object, tolerance: float = 1e-3) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def without_caches() -> Iterator[None]:
    busy = {"max_autotune_subproc_result_timeout_seconds": 600.0}  # for a machine that has other work
    with inductor_config.patch({"fx_graph_cache": False, "autotune_local_cache": False, **busy}):
        yield


@pytest.fixture
def choices() -> Iterator[list[str]]:
    """The names of the choices that were measured, of all operators."""
    names: list[str] = []
    select_algorithm.add_feedback_saver(lambda timings, *_: names.extend(choice.name for choice in timings))
    yield names
    select_algorithm.clear_feedback_savers()


@pytest.fixture
def times() -> Iterator[dict[str, float]]:
    """How long each choice took, by name, of all operators."""
    measured: dict[str, float] = {}

    def seen(timings: dict[Any, float], *_: Any) -> None:
        measured.update({choice.name: time for choice, time in timings.items()})

    select_algorithm.add_feedback_saver(seen)
    yield measured
    select_algorithm.clear_feedback_savers()
