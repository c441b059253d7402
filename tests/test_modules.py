"""Modules of torch.nn give what they give on the CPU, forward and backward, in training and in evaluation."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils import _pytree as pytree

MOST_INPUTS = 4
NOT_COMPARED = {
    "draws random numbers": (
        *("nn.Dropout", "nn.Dropout1d", "nn.Dropout2d", "nn.Dropout3d", "nn.AlphaDropout", "nn.FeatureAlphaDropout"),
        *("nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d", "nn.RReLU"),
    ),
}
REASONS = {name: reason for reason, names in NOT_COMPARED.items() for name in names}


def row(info: ModuleInfo, training: bool) -> Any:
    reason = REASONS.get(info.name)
    marks = [] if reason is None else [pytest.mark.skip(reason=reason)]
    return pytest.param(info, training, marks=marks, id=f"{info.name}-{'train' if training else 'eval'}")


def on(device: torch.device, value: Any) -> Any:
    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, value)


def gradients(module: torch.nn.Module, arguments: Any) -> list[torch.Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return [tensor.grad for tensor in (*leaves, *module.parameters()) if tensor.grad is not None]


def backward(result: Any) -> None:
    roots = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("info", "training"),
    [
        row(info, training)
        for info in module_db
        for training in ((True, False) if info.train_and_eval_differ else (True,))
    ],
)
def test_modules(device: torch.device, info: ModuleInfo, training: bool) -> None:
    inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    compared = 0
    for sample in inputs[:MOST_INPUTS]:
        if issubclass(info.module_cls, LazyModuleMixin):
            continue
        if sample.forward_input is None or sample.constructor_input.kwargs.get("dropout"):
            continue
        torch.manual_seed(0)
        here = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).train(training)
        there = deepcopy(here).to(device)
        arguments = (sample.forward_input.args, sample.forward_input.kwargs)
        cpu_arguments, device_arguments = on(torch.device("cpu"), arguments), on(device, arguments)
        expected = here(*cpu_arguments[0], **cpu_arguments[1])
        actual = there(*device_arguments[0], **device_arguments[1])
        torch.testing.assert_close(actual, expected, check_device=False, rtol=1e-4, atol=1e-4, equal_nan=True)
        backward(expected)
        backward(actual)
        torch.testing.assert_close(
            gradients(there, device_arguments),
            gradients(here, cpu_arguments),
            check_device=False,
            rtol=1e-3,
            atol=1e-4,
            equal_nan=True,
        )
        compared += 1
    if compared == 0:
        pytest.skip("draws random numbers in every forward, or the first")
