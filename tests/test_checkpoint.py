"""Activation checkpointing gives the gradients of the same program without it, random numbers included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Function = Callable[[torch.Tensor], torch.Tensor]

REENTRANT = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])


def gradient(function: Function, device: torch.device) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64, device=device, requires_grad=True)
    function(x).square().sum().backward()
    assert x.grad is not None
    return x.grad


@REENTRANT
def test_gradients(device: torch.device, reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 3 + 1) * x

    actual = gradient(lambda x: checkpoint(block, x, use_reentrant=reentrant), device)
    torch.testing.assert_close(actual, gradient(block, device))


@REENTRANT
def test_random_numbers_are_drawn_again(device: torch.device, reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5) + torch.randn_like(x) * x

    def program(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(block, x, use_reentrant=reentrant)
        return result

    actual = gradient(program, device)
    torch.testing.assert_close(actual, gradient(block, device))


@REENTRANT
def test_recomputation_leaves_the_generator_where_it_was(device: torch.device, reentrant: bool) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5)

    x = torch.ones(64, device=device, requires_grad=True)
    y = checkpoint(block, x, use_reentrant=reentrant)
    state = torch.mtia.get_rng_state()
    y.sum().backward()
    assert torch.equal(torch.mtia.get_rng_state(), state)


@REENTRANT
def test_autocast_is_in_force_again(device: torch.device, reentrant: bool) -> None:
    dtypes = []

    def block(x: torch.Tensor) -> torch.Tensor:
        dtypes.append(torch.get_autocast_dtype("mtia") if torch.is_autocast_enabled("mtia") else None)
        return (x.view(8, 8) @ x.view(8, 8)).float()

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("mtia", dtype=torch.bfloat16):
            result: torch.Tensor = checkpoint(block, x, use_reentrant=reentrant)
        return result

    gradient(program, device)
    assert dtypes == [torch.bfloat16] * 2


@REENTRANT
def test_a_sequence_of_modules(device: torch.device, reentrant: bool) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4))).to(device)
    actual = gradient(lambda x: checkpoint_sequential(layers, 2, x, use_reentrant=reentrant), device)
    torch.testing.assert_close(actual, gradient(layers, device))


def test_an_offloaded_activation_comes_back(device: torch.device) -> None:
    def offloaded(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return x * x * 2

    torch.testing.assert_close(gradient(offloaded, device), gradient(lambda x: x * x * 2, device))
