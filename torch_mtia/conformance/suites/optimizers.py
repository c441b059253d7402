"""Every optimizer of torch.optim, with the settings of PyTorch's database, in every form that it offers on the device,
takes the steps that the CPU takes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from torch_mtia.conformance.database import CPU, assert_same

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 10
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
# Of an optimizer's state, what may lie on the CPU unless the step can be captured.
COUNTERS = {"step", "eta", "mu", "mu_product", "t"}
FORMS = ("plain", "foreach", "fused", "capturable", "capturable_foreach", "differentiable")

Kwargs = dict[str, Any]


def offers(info: Any, form: str) -> bool:
    return all(
        word == "plain" or word in info.supported_impls or (word == "capturable" and info.has_capturable_arg)
        for word in form.split("_")
    )


def settings(info: Any, form: str) -> Iterator[Kwargs]:
    """Upstream's configurations, with the form's flags."""
    flags = {word: True for word in form.split("_") if word != "plain"}
    known = inspect.signature(info.optim_cls).parameters
    flags |= {flag: False for flag in ("foreach", "fused", "differentiable") if flag in known and flag not in flags}
    for optim_input in info.optim_inputs_func(device=CPU):
        kwargs = {**copy.deepcopy(optim_input.kwargs), **flags}
        try:
            info.optim_cls([torch.zeros(2, 2)], **copy.deepcopy(kwargs))
        except ValueError:  # two settings that exclude each other, on every device
            continue
        yield kwargs


def plain(kwargs: Kwargs) -> Kwargs:
    """The same configuration in the form that every device has."""
    forms = ("foreach", "fused", "capturable", "differentiable")
    return {**copy.deepcopy(kwargs), **{flag: False for flag in forms if flag in kwargs}}


def train(
    info: Any, device: torch.device, kwargs: Kwargs, dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Parameters and state after STEPS steps on a quadratic function."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 5), (3, 2), (6, 6)] if info.optim_cls is torch.optim.Muon else [(4, 5), (7,), (), (2, 3, 2)]
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    targets = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    # A differentiable step must not change leaves that require gradients.
    parameters = [value.to(device).requires_grad_(not kwargs.get("differentiable")) for value in values]
    optimizer = info.optim_cls(parameters, **copy.deepcopy(kwargs))

    @torch.no_grad()
    def closure() -> torch.Tensor:
        for p, target in zip(parameters, targets, strict=True):
            gradient = 2 * (p - target)
            p.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
        return torch.stack([((p - t) * (p - t)).sum() for p, t in zip(parameters, targets, strict=True)]).sum()

    for _ in range(STEPS):
        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    state = optimizer.state_dict()["state"]
    if not kwargs.get("capturable") and not kwargs.get("fused"):
        counters = [of_parameter[name] for of_parameter in state.values() for name in COUNTERS & of_parameter.keys()]
        for counter in filter(lambda counter: isinstance(counter, torch.Tensor) and counter.device == CPU, counters):
            counter.stays_on_host = True
    return [p.detach() for p in parameters], state


CASES = [
    pytest.param(info, form, id=f"{info.name}/{form}") for info in optim_db for form in FORMS if offers(info, form)
]


@pytest.mark.parametrize(("info", "form"), CASES)
def test_ten_steps(device: torch.device, info: Any, form: str) -> None:
    for kwargs in settings(info, form):
        assert_same(train(info, device, kwargs), train(info, CPU, plain(kwargs)), device, TOLERANCE)
