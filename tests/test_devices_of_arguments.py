"""Operators raise where their tensors are on several devices, also those that upstream does not check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunScript

Tensor = torch.Tensor
aten = torch.ops.aten


def like(x: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=x.device)


def first(x: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.long, device=x.device)


# Of x and y, two matrices on different devices.
OPERATORS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a mask": lambda x, y: x.masked_fill_(y > 0, 1),
    "an item of a mask": lambda x, y: x.__setitem__(y > 0, y[y > 0]),
    "values for an index": lambda x, y: x.index_put_((first(x),), y[:1]),
    "values to be added": lambda x, y: x.index_put_((first(x),), y[:1], accumulate=True),
    "an index to fill": lambda x, y: x.index_fill_(0, first(y), 1),
    "a target": lambda x, y: F.binary_cross_entropy(x, y),
    "a weight": lambda x, y: F.binary_cross_entropy(x, x, weight=y),
    "a maximum": lambda x, y: torch.max(x, out=like(y)),
    "a minimum": lambda x, y: torch.min(x, out=like(y)),
    "a variance": lambda x, y: torch.var(x, 0, out=like(y, 4)),
    "a deviation": lambda x, y: torch.std(x, 0, out=like(y, 4)),
    "a sum": lambda x, y: torch.sum(x, 0, out=like(y, 4)),
    "a product": lambda x, y: torch.prod(x, 0, out=like(y, 4)),
    "a mean": lambda x, y: torch.mean(x, 0, out=like(y, 4)),
    "a norm": lambda x, y: torch.norm(x, 2, 0, out=like(y, 4)),
    "running sums": lambda x, y: torch.cumsum(x, 0, out=y),
    "rows of a norm": lambda x, y: torch.renorm(x, 2, 0, 1, out=y),
    "whether all": lambda x, y: torch.all(x, 0, out=like(y, 4, dtype=torch.bool)),
    "both ends": lambda x, y: torch.aminmax(x, dim=0, out=(like(y, 4), like(y, 4))),
    "a buffer": lambda x, y: aten.log_sigmoid_forward.output(x, output=like(y, 8, 4), buffer=like(y, 8, 4)),
    "probabilities of counts": lambda x, y: torch.binomial(x, y),
    "samples": lambda x, y: torch.bernoulli(x, out=y),
    "an operand": lambda x, y: x + y,
    "a list": lambda x, y: torch._foreach_add_([x], [y]),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("is_first", [True, False], ids=["x on the device", "x on the other"])
def test_tensors_on_the_cpu_are_refused(device: torch.device, name: str, is_first: bool) -> None:
    x, y = torch.ones(8, 4, device=device), torch.ones(8, 4)
    with pytest.raises(RuntimeError, match="device"):
        OPERATORS[name](*((x, y) if is_first else (y, x)))
    torch.testing.assert_close(x.cpu(), torch.ones(8, 4))
    torch.testing.assert_close(y, torch.ones(8, 4))


ON_TWO_DEVICES = """
import torch
from tests.test_devices_of_arguments import OPERATORS

for name, operator in OPERATORS.items():
    x, y = (torch.ones(8, 4, device=torch.device(torch.accelerator.current_accelerator().type, i)) for i in (0, 1))
    try:
        operator(x, y)
    except RuntimeError as error:
        assert "device" in str(error), (name, error)
    else:
        print(name)
"""


def test_tensors_on_another_device_are_refused(run_script: RunScript) -> None:
    root = Path(__file__).parent.parent
    assert run_script(ON_TWO_DEVICES, TORCH_MTIA_DEVICES="2", PYTHONPATH=str(root)).output() == ""


def test_numbers_and_indices_may_be_on_the_cpu(device: torch.device) -> None:
    def changed(x: Tensor) -> list[Tensor]:
        number, index, mask = torch.tensor(3.0), torch.tensor([0, 2]), torch.ones(8, dtype=torch.bool)
        return [
            x.clone().masked_fill_(x > 0, number),
            x.clone().index_put_((index,), number),
            x.clone().index_put_((index,), x[:2] * 2, accumulate=True),
            x.clone().index_fill_(0, index.to(x.device), number),
            x[index],
            x[mask],
            x + number,
            torch._foreach_add([x], number)[0],
        ]

    x = torch.randn(8, 4)
    for actual, expected in zip(changed(x.to(device)), changed(x), strict=True):
        assert torch.equal(actual.cpu(), expected)
