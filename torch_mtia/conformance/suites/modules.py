"""Modules of torch.nn from PyTorch's database, in training and in evaluation, forward and backward, against the CPU."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.testing._internal.common_modules import ModuleInfo, module_db

from torch_mtia.conformance.database import (
    CPU,
    SHORT,
    assert_alike,
    assert_same,
    dtype_name,
    gradient_of,
    moved,
    rounded_from,
    seed_all,
    tensors_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCE = {
    torch.float64: {"rtol": 1e-7, "atol": 1e-7},
    torch.float32: {"rtol": 1e-3, "atol": 1e-4},
    torch.float16: {"rtol": 2e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
}

ROUNDED_IN_BETWEEN = ("nn.LinearCrossEntropyLoss",)  # as functions that database.py names so

CASES = [
    pytest.param(info, dtype, training, id=f"{info.name}/{dtype_name(dtype)}/{'train' if training else 'eval'}")
    for info in module_db
    for dtype in sorted(set(info.dtypes) & set(TOLERANCE), key=str)
    for training in ((True, False) if info.train_and_eval_differ else (True,))
]


def results(module: torch.nn.Module, given: Any, seed: int) -> Any:
    """What a call with `given`, (args, kwargs), returns, and the gradients of all that requires them."""
    args, kwargs = given
    seed_all(seed)
    module.zero_grad()
    result = module(*args, **kwargs)
    roots = [root for root in tensors_of(result) if root.requires_grad]
    leaves = [leaf for leaf in (*tensors_of((args, kwargs)), *module.parameters()) if leaf.requires_grad]
    if not roots or not leaves:
        return result, []
    return result, list(torch.autograd.grad(roots, leaves, [*map(gradient_of, roots)], allow_unused=True))


def exact_results(module: torch.nn.Module, state: Any, given: Any, expected: Any) -> Any:
    """The results of 16 bits that float64 gives; `expected`, the CPU's, if it refuses them."""
    wide = deepcopy(module).double()
    wide.load_state_dict(state)
    exact = rounded_from(torch.float64, lambda found: results(wide, found, 0), given, expected)
    return expected if exact is None else exact


@pytest.mark.parametrize(("info", "dtype", "training"), CASES)
def test_forward_and_backward(device: torch.device, info: ModuleInfo, dtype: torch.dtype, training: bool) -> None:
    if issubclass(info.module_cls, LazyModuleMixin):
        pytest.skip("becomes the module that it is lazy for, which has tests of its own")
    seed_all(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    checked, refusal = 0, "none has an input"
    for sample in inputs:
        if sample.forward_input is None:
            continue
        constructor = sample.constructor_input
        given = sample.forward_input.args, sample.forward_input.kwargs
        seed_all(0)
        here = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).train(training)
        there = deepcopy(here).to(device)
        try:
            state = deepcopy(here.state_dict())
            expected = results(here, moved(given, CPU), 0)
            here.load_state_dict(state)
            again = results(here, moved(given, CPU), 1)
        except Exception as error:
            refusal = f"the CPU refuses them: {error}"
            continue
        actual = results(there, moved(given, device), 0)
        if all(torch.equal(a, b) for a, b in zip(tensors_of(expected), tensors_of(again), strict=True)):
            if dtype in SHORT and device != CPU and info.name not in ROUNDED_IN_BETWEEN:
                expected = exact_results(here, state, given, expected)
            assert_same(actual, expected, device, TOLERANCE[dtype])
        else:
            assert_alike(actual, expected, device)
        checked += 1
    if not checked:
        pytest.skip(f"no input of the database to compare; {refusal}")


@pytest.mark.parametrize("info", [pytest.param(info, id=info.name) for info in module_db])
def test_move_and_back(device: torch.device, info: ModuleInfo) -> None:
    """The state survives a way to the device and back, and a copy by state_dict."""
    if issubclass(info.module_cls, LazyModuleMixin):
        pytest.skip("has no parameters before its first call")
    constructor = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)[
        0
    ]
    here = info.module_cls(*constructor.constructor_input.args, **constructor.constructor_input.kwargs)
    there = deepcopy(here).to(device)
    assert all(tensor.device == device for tensor in (*there.parameters(), *there.buffers()))
    assert_same(dict(there.state_dict()), dict(here.state_dict()), device, {"rtol": 0, "atol": 0})
    third = deepcopy(here)
    third.load_state_dict(there.state_dict())
    assert_same(dict(there.cpu().state_dict()), dict(third.state_dict()), CPU, {"rtol": 0, "atol": 0})
