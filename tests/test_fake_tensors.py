"""Fake tensors of mtia: shapes, dtypes and gradients are computed, and no device is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunScript


@pytest.mark.in_tree("PyTorch opens the device of another name, as FakeTensorMode.avoid_device_init says")
def test_fake_tensors_open_no_device(run_script: RunScript) -> None:
    script = """
        import torch
        import torch.nn.functional as F
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode() as mode:
            x = torch.empty(3, 4, device="mtia", requires_grad=True)
            scale = torch.tensor([1.0, 2.0, 3.0, 4.0], device="mtia") + torch.ones(4).to("mtia")
            linear = torch.nn.Linear(4, 5, device="mtia")
            linear(x * scale).sum().backward()
            heads = torch.randn(1, 2, 8, 16, device="mtia")
            results = [
                x.grad,
                linear.weight.grad,
                F.layer_norm(x, (4,)),
                F.dropout(x),
                F.scaled_dot_product_attention(heads, heads, heads),
                F.conv2d(torch.randn(1, 3, 8, 8, device="mtia"), torch.randn(2, 3, 3, 3, device="mtia")),
            ]
        program = torch.export.export(linear, (x,))
        print({result.device.type for result in results}, [tuple(result.shape) for result in results])
        print(tuple(program.graph_signature.user_outputs), torch.mtia.is_initialized())
    """
    shapes = "[(3, 4), (5, 4), (3, 4), (3, 4), (1, 2, 8, 16), (1, 2, 6, 6)]"
    assert run_script(script).output() == f"{{'mtia'}} {shapes}\n('linear',) False\n"


def test_fake_tensors_of_devices_that_are_not_there(run_script: RunScript) -> None:
    script = """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            x = torch.empty(2, 3, device="mtia:60")
            print((x @ x.t()).device, torch.mtia.is_initialized())
    """
    assert run_script(script).output() == "mtia:60 False\n"


@pytest.mark.in_tree("PyTorch opens the device of another name, as FakeTensorMode.avoid_device_init says")
def test_a_forked_child_whose_device_is_unusable_has_fake_tensors(run_script: RunScript) -> None:
    script = """
        import os
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        torch.ones(2, device="mtia")
        if (child := os.fork()) == 0:
            with FakeTensorMode():
                x = torch.tensor([1.0, 2.0], device="mtia")
                print(torch.nn.Linear(2, 3, device="mtia")(x).shape, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """
    assert run_script(script).output() == "torch.Size([3])\n"
