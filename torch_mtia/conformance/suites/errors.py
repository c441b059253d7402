"""Common mistakes: the exception has the CPU's type, and its message names what the CPU's names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_mtia.conformance.agreement import numbers

pytestmark = pytest.mark.filterwarnings("ignore")

Device = torch.device


def leaf(device: Device) -> torch.Tensor:
    return numbers(3, device=device).requires_grad_()


def index(device: Device, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=device)


# What is done, and words that the message has, whatever the device.
MISTAKES: dict[str, tuple[Callable[[Device], Any], str]] = {
    # Sizes
    "sizes that do not broadcast": (lambda d: numbers(3, device=d) + numbers(4, device=d), "must match the size"),
    "product of wrong sizes": (lambda d: numbers(2, 3, device=d) @ numbers(2, 3, device=d), "2x3"),
    "mm of vectors": (lambda d: torch.mm(numbers(3, device=d), numbers(3, device=d)), "matrix"),
    "bmm of wrong batches": (lambda d: torch.bmm(numbers(2, 3, 4, device=d), numbers(3, 4, 5, device=d)), "batch"),
    "dot of wrong sizes": (lambda d: torch.dot(numbers(3, device=d), numbers(4, device=d)), "same number of elements"),
    "linear of wrong sizes": (lambda d: F.linear(numbers(2, 3, device=d), numbers(4, 5, device=d)), "2x3"),
    "cat of wrong sizes": (
        lambda d: torch.cat([numbers(2, 3, device=d), numbers(2, 4, device=d)]),
        "[Ss]izes of tensors",
    ),
    "cat of nothing": (lambda _: torch.cat([]), "non-empty"),
    "stack of wrong sizes": (lambda d: torch.stack([numbers(2, device=d), numbers(3, device=d)]), "equal size"),
    "view of a wrong size": (lambda d: numbers(6, device=d).view(4), "invalid for input of size 6"),
    "view of strides": (lambda d: numbers(2, 3, device=d).t().view(6), "reshape"),
    "expand of a wrong size": (lambda d: numbers(3, device=d).expand(4), "expanded size"),
    "reshape with two unknown": (lambda d: numbers(6, device=d).reshape(-1, -1), "only one dimension"),
    "squeeze of no dimension": (lambda d: numbers(3, device=d).squeeze(4), "Dimension out of range"),
    "sum of no dimension": (lambda d: numbers(3, device=d).sum(2), "Dimension out of range"),
    "softmax of no dimension": (lambda d: numbers(3, device=d).softmax(-3), "Dimension out of range"),
    "transpose of no dimension": (lambda d: numbers(2, 3, device=d).transpose(0, 5), "Dimension out of range"),
    "permute twice the same": (lambda d: numbers(2, 3, device=d).permute(0, 0), "duplicate dims|repeated dim"),
    "negative size": (lambda d: torch.empty(-1, device=d), "negative dimension"),
    "convolution of wrong channels": (
        lambda d: F.conv2d(numbers(1, 3, 8, 8, device=d), numbers(4, 2, 3, 3, device=d)),
        "channels",
    ),
    "convolution of a larger kernel": (
        lambda d: F.conv2d(numbers(1, 3, 2, 2, device=d), numbers(4, 3, 5, 5, device=d)),
        "[Kk]ernel size",
    ),
    "pooling to nothing": (lambda d: F.max_pool2d(numbers(1, 1, 2, 2, device=d), 5), "too small"),
    "batch norm of one value": (
        lambda d: F.batch_norm(numbers(1, 3, device=d), None, None, training=True),
        "more than 1 value",
    ),
    "layer norm of a wrong shape": (lambda d: F.layer_norm(numbers(2, 3, device=d), (4,)), "normalized_shape"),
    "loss of wrong sizes": (lambda d: F.nll_loss(numbers(2, 3, device=d), index(d, 0, 1, 2)), "batch_size"),
    "median of nothing": (lambda d: torch.zeros(0, 3, device=d).max(0), "non-zero size"),
    "maximum of nothing": (lambda d: torch.zeros(0, device=d).max(), "identity|numel"),
    "argmax of nothing": (lambda d: torch.zeros(0, device=d).argmax(), "non-zero|non-empty|numel"),
    "setting a wrong size": (
        lambda d: numbers(3, device=d).__setitem__(slice(0, 2), numbers(3, device=d)),
        "expanded size|shape mismatch",
    ),
    "out of a wrong dtype": (
        lambda d: torch.add(numbers(3, device=d), 1, out=index(d, 1, 2, 3)),
        "can't be cast|result type",
    ),
    # Indices
    "element out of range": (lambda d: numbers(3, device=d)[5], "out of bounds|out of range"),
    "element of a number": (lambda d: torch.tensor(1.0, device=d)[0], "0-dim"),
    "too many indices": (lambda d: numbers(3, device=d)[0, 0], "too many indices"),
    "mask of a wrong size": (lambda d: numbers(3, device=d)[torch.tensor([True, False], device=d)], "mask"),
    "index of numbers": (lambda d: numbers(3, device=d)[numbers(2, device=d)], "indices must be|used as indices"),
    "index_select of a matrix": (lambda d: numbers(3, device=d).index_select(0, index(d, 0, 1).view(1, 2)), "[Ii]ndex"),
    "gather of other dimensions": (
        lambda d: numbers(2, 3, device=d).gather(0, index(d, 0)),
        "same number of dimensions",
    ),
    "gather with numbers": (lambda d: numbers(3, device=d).gather(0, numbers(1, device=d)), "int64"),
    "scatter of another dtype": (lambda d: numbers(3, device=d).scatter(0, index(d, 0), index(d, 1)), "dtype"),
    "narrow beyond the end": (lambda d: numbers(3, device=d).narrow(0, 2, 2), "exceeds dimension size"),
    "select beyond the end": (lambda d: numbers(3, device=d).select(0, 3), "out of range"),
    "split of a wrong sum": (lambda d: numbers(5, device=d).split([1, 2]), "sum exactly"),
    "chunk into none": (lambda d: numbers(5, device=d).chunk(0), "greater than 0|chunks"),
    "embedding of numbers": (lambda d: F.embedding(numbers(2, device=d), numbers(3, 2, device=d)), "[Ii]nt|Long"),
    "topk of too many": (lambda d: numbers(3, device=d).topk(4), "out of range"),
    "repeat of too few": (lambda d: numbers(2, 3, device=d).repeat(2), "[Nn]umber of dimensions"),
    # Dtypes
    "products of two dtypes": (lambda d: numbers(2, 2, device=d) @ numbers(2, 2, device=d).double(), "same dtype"),
    "bits of numbers": (lambda d: numbers(3, device=d) & numbers(3, device=d), "not implemented for 'Float'|bitwise"),
    "shift of bool": (lambda d: torch.tensor([True], device=d) << torch.tensor([True], device=d), "Bool"),
    "result in place of another kind": (lambda d: index(d, 1, 2).add_(0.5), "can't be cast"),
    "subtraction of bool": (
        lambda d: torch.tensor([True], device=d) - torch.tensor([True], device=d),
        "logical_xor|bool",
    ),
    "mean of integers": (lambda d: index(d, 1, 2).mean(), "floating point or complex|dtype"),
    "order of complex numbers": (lambda d: numbers(2, device=d, dtype=torch.complex64) > 0, "complex|ComplexFloat"),
    "floor of complex numbers": (lambda d: numbers(2, device=d, dtype=torch.complex64).floor(), "complex"),
    "convolution of two dtypes": (
        lambda d: F.conv1d(numbers(1, 1, 4, device=d), numbers(1, 1, 2, device=d).double()),
        "type",
    ),
    "view as a larger dtype": (lambda d: numbers(3, device=d).view(torch.float64), "divisible"),
    "bernoulli above one": (lambda d: torch.empty(3, device=d).bernoulli_(1.5), r"p in|\[0, 1\]|between"),
    "normal of a negative deviation": (lambda d: torch.empty(3, device=d).normal_(0, -1), "std"),
    "uniform upside down": (lambda d: torch.empty(3, device=d).uniform_(1, 0), "from"),
    "randint of no range": (lambda d: torch.randint(5, 5, (2,), device=d), "from"),
    "randperm of less than none": (lambda d: torch.randperm(-1, device=d), "non-negative|negative"),
    "multinomial of too many": (lambda d: torch.multinomial(torch.ones(3, device=d), 4), "replacement"),
    "dropout of a wrong rate": (lambda d: F.dropout(numbers(3, device=d), 1.5), "between 0 and 1"),
    "division of integers by zero in steps": (lambda d: torch.arange(0, 5, 0, device=d), "nonzero"),
    "arange backwards": (lambda d: torch.arange(5, 0, 1, device=d), "inconsistent with step"),
    # Gradients
    "change of a leaf": (lambda d: leaf(d).add_(1), "leaf Variable"),
    "change through a view of a leaf": (lambda d: leaf(d)[:2].zero_(), "leaf Variable"),
    "change of what backward needs": (lambda d: _changed(d), "modified by an inplace operation"),
    "backward of many": (lambda d: (leaf(d) * 2).backward(), "scalar outputs"),
    "backward twice": (lambda d: _backward_twice(d), "second time"),
    "backward of what requires none": (lambda d: numbers(1, device=d).sum().backward(), "does not require grad"),
    "gradient of a wrong size": (lambda d: (leaf(d) * 2).backward(numbers(4, device=d)), "shape"),
    "gradient of integers": (lambda d: index(d, 1).requires_grad_(), "floating point"),
    "gradient of what was not used": (
        lambda d: torch.autograd.grad((leaf(d) * 2).sum(), leaf(d)),
        "not have been used",
    ),
    "out with gradients": (lambda d: torch.add(leaf(d), 1, out=numbers(3, device=d)), "automatic differentiation"),
    "assigned gradient of another size": (lambda d: setattr(leaf(d), "grad", numbers(4, device=d)), "size"),
    # Overlaps, linear algebra, conversion
    "change of an expanded tensor": (lambda d: numbers(1, device=d).expand(3).add_(1), "single memory location"),
    "change into itself": (lambda d: (x := numbers(6, device=d))[1:].add_(x[:-1]), "single memory location|overlap"),
    "inverse of a singular matrix": (lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)), "singular"),
    "cholesky of a wrong matrix": (lambda d: torch.linalg.cholesky(-torch.eye(2, device=d)), "positive-definite"),
    "inverse of no square": (lambda d: torch.linalg.inv(numbers(2, 3, device=d)), "square"),
    "item of many": (lambda d: numbers(3, device=d).item(), "3 elements"),
    "truth of many": (lambda d: bool(numbers(3, device=d)), "ambiguous"),
    "index of a number with fraction": (lambda d: [1, 2][numbers(1, device=d)[0]], "integer|index"),
    "attribute that is not there": (
        lambda d: numbers(3, device=d).nosuch,  # type: ignore[attr-defined]
        "nosuch",
    ),
    "unknown argument": (
        lambda d: torch.add(numbers(3, device=d), 1, nosuch=2),  # type: ignore[call-overload]
        "nosuch|invalid combination",
    ),
    "deep copy of a result": (lambda d: __import__("copy").deepcopy(leaf(d) * 2), "deepcopy"),
}


def _changed(device: Device) -> None:
    y = leaf(device).exp()
    y.add_(1)
    y.sum().backward()


def _backward_twice(device: Device) -> None:
    y = leaf(device).exp().sum()
    y.backward()
    y.backward()


def error_of(call: Callable[[Device], Any], device: Device) -> BaseException | None:
    try:
        call(device)
        if device.type != "cpu":
            torch.accelerator.synchronize()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(device: Device, name: str) -> None:
    call, words = MISTAKES[name]
    expected, actual = error_of(call, Device("cpu")), error_of(call, device)
    assert expected is not None, "the CPU does not refuse it"
    assert re.search(words, str(expected)), f"the CPU says: {expected}"
    assert actual is not None, f"is not refused; the CPU says: {expected}"
    assert type(actual) is type(expected), f"{type(actual).__name__}: {actual}; the CPU: {expected!r}"
    assert re.search(words, str(actual)), f"says: {actual}; the CPU: {expected}"
    assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]


# Two devices in one call: the message names both.
MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda here, there: here + there,
    "add in place": lambda here, there: there.add_(here),
    "mm": lambda here, there: here @ there,
    "cat": lambda here, there: torch.cat([here, there]),
    "where": lambda here, there: torch.where(there > 0, there, here),
    "linear": F.linear,
    "index_add": lambda here, there: there.index_add(0, torch.tensor([0, 1, 2], device=there.device), here),
    "gather": lambda here, there: there.gather(0, here.long()),
    "mse_loss": F.mse_loss,
    "embedding": lambda here, there: F.embedding(here.long().abs(), there),
    "out": lambda here, there: torch.add(there, there, out=here),
    "lerp": lambda here, there: torch.lerp(there, here, 0.5),
    "addmm": lambda here, there: torch.addmm(here, there, there),
    "index_select": lambda _here, there: there.index_select(0, torch.tensor([0])),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices(accelerator: Device, name: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        MIXED[name](numbers(3, 3), numbers(3, 3, device=accelerator))
    assert re.search(r"same device|device", str(caught.value))
    assert "cpu" in str(caught.value)
    assert accelerator.type in str(caught.value)


# Values that are only checked on the device: any error will do, and the device goes on.
VALUES: dict[str, Callable[[Device], torch.Tensor]] = {
    "indexing": lambda d: numbers(3, device=d)[index(d, 9)],
    "negative": lambda d: numbers(3, device=d)[index(d, -4)],
    "gather": lambda d: numbers(3, device=d).gather(0, index(d, 7)),
    "scatter": lambda d: numbers(3, device=d).scatter(0, index(d, 7), 1.0),
    "index_select": lambda d: numbers(3, device=d).index_select(0, index(d, 3)),
    "index_add": lambda d: numbers(3, device=d).index_add(0, index(d, 5), numbers(1, device=d)),
    "index_put": lambda d: numbers(3, device=d).index_put((index(d, 5),), numbers(1, device=d)),
    "take": lambda d: numbers(3, device=d).take(index(d, 3)),
    "embedding": lambda d: F.embedding(index(d, 5), numbers(3, 2, device=d)),
    "nll_loss": lambda d: F.nll_loss(numbers(1, 3, device=d), index(d, 4)),
    "cross_entropy": lambda d: F.cross_entropy(numbers(1, 3, device=d), index(d, 3)),
    "one_hot": lambda d: F.one_hot(index(d, 3), 2),
    "multinomial": lambda d: torch.multinomial(torch.tensor([-1.0, 2], device=d), 1),
    "bincount": lambda d: torch.bincount(index(d, -1)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(device: Device, name: str) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        VALUES[name](device).cpu()
    assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]
