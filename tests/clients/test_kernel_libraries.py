"""Libraries of Triton kernels, as they are published, compute on the device what PyTorch does."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fla.modules import RMSNorm as NormOfFla
from fla.ops.linear_attn import chunk_linear_attn
from fla.utils import device as device_of_fla
from liger_kernel.transformers import LigerCrossEntropyLoss, LigerFusedLinearCrossEntropyLoss, LigerRMSNorm
from liger_kernel.transformers.functional import liger_swiglu
from liger_kernel.utils import infer_device


def gradients(loss: torch.Tensor, *of: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, of))


def test_liger_kernel_and_flash_linear_attention_choose_the_device(device: torch.device) -> None:
    assert infer_device() == device.type
    assert device_of_fla == device.type


def test_losses_of_liger_kernel(device: torch.device) -> None:
    x = torch.randn(24, 32, device=device, requires_grad=True)
    weight = torch.randn(50, 32, device=device, requires_grad=True)
    target = torch.randint(50, (24,), device=device)
    expected = F.cross_entropy(x @ weight.t(), target)
    torch.testing.assert_close(LigerCrossEntropyLoss()(x @ weight.t(), target), expected)
    fused = LigerFusedLinearCrossEntropyLoss()(weight, x, target)
    torch.testing.assert_close(fused, expected)
    torch.testing.assert_close(gradients(fused, x, weight), gradients(expected, x, weight), atol=1e-4, rtol=1e-4)


def test_layers_of_liger_kernel(device: torch.device) -> None:
    x, y = (torch.randn(8, 64, device=device, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(liger_swiglu(x, y), F.silu(x) * y, atol=1e-5, rtol=1e-5)
    norm = LigerRMSNorm(64, eps=1e-6).to(device)
    expected = F.rms_norm(x, (64,), norm.weight, 1e-6)
    torch.testing.assert_close(norm(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(norm(x).square().sum(), x), gradients(expected.square().sum(), x), atol=1e-4, rtol=1e-4
    )


def test_a_layer_of_flash_linear_attention(device: torch.device) -> None:
    x = torch.randn(4, 16, 64, device=device)
    torch.testing.assert_close(NormOfFla(64).to(device)(x), F.rms_norm(x, (64,), eps=1e-5), atol=1e-5, rtol=1e-5)


def test_attention_of_flash_linear_attention(device: torch.device) -> None:
    q, k, v = (torch.randn(1, 64, 2, 32, device=device) for _ in range(3))
    out, _ = chunk_linear_attn(q, k, v, normalize=False)
    expected = torch.einsum("bthd,bshd->bhts", q * 32**-0.5, k).tril()
    torch.testing.assert_close(out, torch.einsum("bhts,bshd->bthd", expected, v), atol=1e-3, rtol=1e-3)
