"""Every optimizer of torch.optim, in every form it offers on this device, takes the steps that the CPU takes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from torch_mtia import fallback

CPU = torch.device("cpu")
STEPS = 10
FORMS = ("plain", "foreach", "fused", "capturable", "capturable foreach", "differentiable")
NEEDS_SPARSE = "takes sparse gradients only, and there are no sparse tensors on mtia"

Kwargs = dict[str, Any]


def offers(info: Any, form: str) -> bool:
    return all(
        word == "plain" or word in info.supported_impls or (word == "capturable" and info.has_capturable_arg)
        for word in form.split()
    )


def inputs(info: Any, form: str) -> Iterator[Kwargs]:
    """Upstream's configurations, with the form's flags."""
    flags = {word: True for word in form.split() if word != "plain"}
    known = inspect.signature(info.optim_cls).parameters
    flags |= {flag: False for flag in ("foreach", "fused", "differentiable") if flag in known and flag not in flags}
    for optim_input in info.optim_inputs_func(device=CPU):
        yield {**copy.deepcopy(optim_input.kwargs), **flags}


def reference(kwargs: Kwargs) -> Kwargs:
    """The same configuration in the plain form, which every device has."""
    forms = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}
    return {**copy.deepcopy(kwargs), **{flag: value for flag, value in forms.items() if flag in kwargs}}


def train(
    info: Any, device: torch.device, kwargs: Kwargs, dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Parameters and state after STEPS steps on a quadratic function."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 5), (3, 2), (6, 6)] if info.optim_cls is torch.optim.Muon else [(4, 5), (7,), (), (2, 3, 2)]
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    targets = [torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes]
    # A differentiable step must not change leaves that require gradients.
    parameters = [value.to(device).requires_grad_(not kwargs.get("differentiable")) for value in values]
    optimizer = info.optim_cls(parameters, **kwargs)

    @torch.no_grad()
    def closure() -> torch.Tensor:
        for p, target in zip(parameters, targets, strict=True):
            p.grad = 2 * (p - target)
        return torch.stack([((p - t) * (p - t)).sum() for p, t in zip(parameters, targets, strict=True)]).sum()

    for _ in range(STEPS):
        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return [p.detach().cpu() for p in parameters], optimizer.state_dict()["state"]


CASES = [
    pytest.param(
        info,
        form,
        id=f"{info.name}-{form}",
        marks=[pytest.mark.skip(reason=NEEDS_SPARSE)] if info.only_supports_sparse_grads else [],
    )
    for info in optim_db
    for form in FORMS
    if offers(info, form)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("info", "form"), CASES)
def test_ten_steps_equal_those_of_the_cpu(device: torch.device, info: Any, form: str) -> None:
    compared = 0
    for kwargs in inputs(info, form):
        try:
            info.optim_cls([torch.zeros(2, 2)], **copy.deepcopy(kwargs))
        except ValueError:  # two settings that exclude each other, on every device
            continue
        parameters, state = train(info, device, kwargs)
        expected, expected_state = train(info, CPU, reference(kwargs))
        torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state, expected_state, check_device=False, rtol=1e-4, atol=1e-5)
        compared += 1
    assert compared


FUSED = [info for info in optim_db if "fused" in info.supported_impls]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("info", FUSED, ids=lambda info: info.name)
def test_fused_optimizers_in_other_dtypes(device: torch.device, info: Any, dtype: torch.dtype) -> None:
    kwargs = {"lr": 0.01, "fused": True}
    parameters, _ = train(info, device, kwargs, dtype)
    expected, _ = train(info, CPU, kwargs, dtype)
    torch.testing.assert_close(parameters, expected, equal_nan=True)


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
