"""Fused and capturable optimizers. That every form takes the steps of the CPU is in the conformance suite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from torch_mtia import fallback
from torch_mtia.conformance.database import CPU, assert_same
from torch_mtia.conformance.suites.optimizers import train

FUSED = [info for info in optim_db if "fused" in info.supported_impls]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("info", FUSED, ids=lambda info: info.name)
def test_fused_optimizers_in_other_dtypes(device: torch.device, info: Any, dtype: torch.dtype) -> None:
    kwargs = {"lr": 0.01, "fused": True}
    parameters, _ = train(info, device, kwargs, dtype)
    expected, _ = train(info, CPU, kwargs, dtype)
    assert_same(parameters, expected, device, {})


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("info", FUSED, ids=lambda info: info.name)
def test_fused_optimizers_do_not_fall_back(device: torch.device, info: Any, lr: Any) -> None:
    def steps(where: torch.device) -> list[torch.Tensor]:
        parameters = [torch.full((3,), float(i), device=where, requires_grad=True) for i in range(4)]
        rate = lr.to(where) if isinstance(lr, torch.Tensor) else lr
        optimizer = info.optim_cls(parameters, lr=rate, weight_decay=0.1, fused=True)
        for step in range(3):
            for p in parameters:
                p.grad = torch.full((3,), 1.0 + step, device=where)
            with fallback.forbid():
                optimizer.step()
        return [p.detach().cpu() for p in parameters]

    torch.testing.assert_close(steps(device), steps(CPU))


def test_a_fused_step_with_an_infinite_gradient_changes_nothing(device: torch.device) -> None:
    parameters = [torch.ones(3, device=device)]
    gradients, averages, squares = ([torch.ones(3, device=device)] for _ in range(3))
    steps = [torch.tensor(1.0, device=device)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    for found, expected in ((1.0, True), (0.0, False)):
        torch._fused_adam_(
            parameters,
            gradients,
            averages,
            squares,
            [],
            steps,
            **options,
            amsgrad=False,
            maximize=False,
            grad_scale=torch.tensor(2.0, device=device),
            found_inf=torch.tensor(found, device=device),
        )
        assert torch.equal(parameters[0].cpu(), torch.ones(3)) == expected
    assert gradients[0].tolist() == [0.5] * 3


def sgd(parameters: list[torch.Tensor], gradients: list[torch.Tensor], momentum: list[torch.Tensor]) -> None:
    torch._fused_sgd_(
        parameters,
        gradients,
        momentum,
        weight_decay=0.0,
        momentum=0.9,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    )


def test_wrong_lists_raise_at_the_call(device: torch.device) -> None:
    def ones(*sizes: int, dtype: torch.dtype = torch.float32, where: torch.device = device) -> torch.Tensor:
        return torch.ones(sizes, dtype=dtype, device=where)

    for gradients, momentum, message in (
        ([ones(3)], [ones(3), ones(3)], "same length"),
        ([ones(3), ones(3)], [ones(3)], "same length"),
        ([ones(4)], [ones(3)], "same sizes and strides"),
        ([ones(3, where=CPU)], [ones(3)], "same device"),
        ([ones(3, dtype=torch.float64)], [ones(3)], "expected scalar type"),
    ):
        parameters = [ones(3)]
        with pytest.raises(RuntimeError, match=message):
            sgd(parameters, gradients, momentum)
        assert parameters[0].tolist() == [1.0] * 3
    integers = [ones(3, dtype=torch.int32)]
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented for 'Int'"):
        sgd(integers, integers, integers)


def test_capturable_needs_no_value_on_the_host(device: torch.device) -> None:
    parameter = torch.ones(3, device=device, requires_grad=True)
    parameter.grad = torch.ones(3, device=device)
    optimizer = torch.optim.Adam([parameter], capturable=True)
    optimizer.step()
    assert optimizer.state[parameter]["step"].device == device
