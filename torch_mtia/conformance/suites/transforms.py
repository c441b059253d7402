"""What PyTorch makes of functions and numbers: torch.func and hooks of autograd; complex numbers, seen as pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.nn import functional as F

from torch_mtia.conformance.agreement import assert_agrees, network, numbers
from torch_mtia.conformance.database import CPU

pytestmark = pytest.mark.filterwarnings("ignore")

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]

# torch.func ----------------------------------------------------------------------------------------------------------


def ramp(*shape: int, device: torch.device) -> Tensor:
    """Numbers that need no generator, which vmap refuses."""
    return torch.arange(1.0, 1.0 + math.prod(shape), device=device).sin().view(shape)


# Of a vector of five numbers, to a vector.
FUNCTIONS: dict[str, Function] = {
    "sin": torch.sin,
    "polynomial": lambda x: x**3 - 2 * x + 1,
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "product": lambda x: x.outer(x.exp()).sum(0),
    "cumsum": lambda x: x.cumsum(0).tanh(),
    "where": lambda x: torch.where(x > 0, x * x, x.sin()),
    "indexed": lambda x: x[[0, 2, 2]] * x[1:4],
    "linear": lambda x: F.linear(x, ramp(3, 5, device=x.device)).sigmoid(),
    "gelu": F.gelu,
    "convolution": lambda x: F.conv1d(x.view(1, 1, 5), ramp(2, 1, 3, device=x.device)).flatten().tanh(),
    "sorted": lambda x: x.sort().values * torch.arange(5.0, device=x.device),
    "in place": lambda x: x.clone().mul_(2).add_(x).cos_(),
}


def summed(function: Function) -> Function:
    return lambda x: function(x).sum()


TRANSFORMS: dict[str, Callable[[Function, Tensor], Any]] = {
    "grad": lambda f, x: func.grad(summed(f))(x),
    "grad_and_value": lambda f, x: func.grad_and_value(summed(f))(x),
    "grad of grad": lambda f, x: func.grad(lambda y: func.grad(summed(f))(y).sum())(x),
    "vmap": lambda f, x: func.vmap(f)(torch.stack([x, 2 * x, -x])),
    "vmap of columns": lambda f, x: func.vmap(f, in_dims=1, out_dims=1)(torch.stack([x, 2 * x], 1)),
    "vmap in chunks": lambda f, x: func.vmap(f, chunk_size=2)(torch.stack([x, 2 * x, -x])),
    "vmap of grad": lambda f, x: func.vmap(func.grad(summed(f)))(torch.stack([x, 2 * x, -x])),
    "jvp": lambda f, x: func.jvp(f, (x,), (x.cos(),)),
    "vjp": lambda f, x: [(r := func.vjp(f, x))[0], *r[1](torch.arange(1.0, 1.0 + len(r[0]), device=x.device))],
    "jacrev": lambda f, x: func.jacrev(f)(x),
    "jacfwd": lambda f, x: func.jacfwd(f)(x),
    "hessian": lambda f, x: func.hessian(summed(f))(x),
    "linearize": lambda f, x: [(r := func.linearize(f, x))[0], r[1](x.cos())],
    "functionalize": lambda f, x: func.functionalize(f)(x),
    "jacobian of autograd": lambda f, x: torch.autograd.functional.jacobian(f, x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_func(device: torch.device, function: str, transform: str) -> None:
    assert_agrees(
        lambda d: TRANSFORMS[transform](FUNCTIONS[function], numbers(5, device=d)), device, {"rtol": 1e-3, "atol": 1e-4}
    )


def test_functional_call_and_gradients_of_each_sample(device: torch.device) -> None:
    def call(d: torch.device) -> Any:
        net = network(d)
        parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}

        def loss(parameters: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(func.functional_call(net, parameters, (x[None],)), label[None])

        labels = torch.tensor([0, 2, 1, 1, 0]).to(d)
        return func.vmap(func.grad(loss), in_dims=(None, 0, 0))(parameters, numbers(5, 4, device=d), labels)

    assert_agrees(call, device)


def test_an_ensemble(device: torch.device) -> None:
    def call(d: torch.device) -> Any:
        parameters, buffers = func.stack_module_state([network(d, seed) for seed in range(3)])
        base = network(torch.device("meta"))
        return func.vmap(lambda p, b, x: func.functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(
            parameters, buffers, numbers(5, 4, device=d)
        )

    assert_agrees(call, device)


@pytest.mark.parametrize("randomness", ["same", "different", "error"])
def test_random_numbers_in_vmap(device: torch.device, randomness: str) -> None:
    def draw() -> Any:
        x = torch.zeros(4, 50, device=device)
        return func.vmap(lambda row: row + torch.rand_like(row), randomness=randomness)(x)

    if randomness == "error":
        with pytest.raises(RuntimeError, match="random"):
            draw()
        return
    rows = draw().unique(dim=0)
    assert len(rows) == (1 if randomness == "same" else 4)


def test_dual_numbers(device: torch.device) -> None:
    def call(d: torch.device) -> Any:
        with forward_ad.dual_level():
            x = forward_ad.make_dual(numbers(5, device=d), numbers(5, device=d, seed=1))
            result = forward_ad.unpack_dual((x.exp() * x.sin()).softmax(0) @ x)
            return result.primal, result.tangent

    assert_agrees(call, device)


def test_hooks_see_tensors_of_the_device(device: torch.device) -> None:
    def call(d: torch.device) -> Any:
        packed: list[Tensor] = []

        def tripled(leaf: Tensor) -> None:
            assert leaf.grad is not None
            leaf.grad *= 3

        x = numbers(5, device=d).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
            y = x.exp()
        y.register_hook(lambda g: g * 2)
        x.register_post_accumulate_grad_hook(tripled)
        (y * y).sum().backward()
        return [x.grad, *(t.detach() for t in packed)]

    assert_agrees(call, device)


def test_saved_tensors_wait_on_the_cpu(device: torch.device) -> None:
    def call(d: torch.device) -> Any:
        x = numbers(5, 5, device=d).requires_grad_()
        with torch.autograd.graph.save_on_cpu(pin_memory=d != CPU):
            y = (x.exp() @ x).tanh()
        return torch.autograd.grad(y.sum(), x)

    assert_agrees(call, device)


# Complex numbers -----------------------------------------------------------------------------------------------------


def waves(device: torch.device, *shape: int) -> Tensor:
    return numbers(*(shape or (4, 6)), device=device, dtype=torch.complex64)


COMPLEX: dict[str, Callable[[torch.device], Any]] = {
    "parts": lambda d: [waves(d).real, waves(d).imag, torch.view_as_real(waves(d))],
    "absolute": lambda d: [waves(d).abs(), waves(d).angle(), waves(d).sgn()],
    "polar": lambda d: torch.polar(numbers(5, device=d).abs(), numbers(5, device=d, seed=1)),
    "conjugate of a product": lambda d: (waves(d) @ waves(d).mH).conj(),
    "conjugate of a slice": lambda d: waves(d).conj()[1:, ::2] * 2,
    "lazy operands": lambda d: waves(d).conj() + waves(d).imag - waves(d).conj().imag,
    "resolved": lambda d: [waves(d).conj().resolve_conj(), waves(d).conj().imag.resolve_neg()],
    "dot": lambda d: [torch.vdot(waves(d, 5), waves(d, 5)), torch.dot(waves(d, 5), waves(d, 5).conj())],
    "fft": lambda d: [torch.fft.fft(waves(d)), torch.fft.ifft2(waves(d)), torch.fft.rfft(waves(d).real)],
    "elementary": lambda d: [f(waves(d)) for f in (torch.exp, torch.log, torch.sqrt, torch.tanh, torch.sin)],
    "divided": lambda d: waves(d) / (waves(d) + 3) + 1 / (waves(d) + 5j),
    "powers": lambda d: waves(d) ** 2 + waves(d) ** (1 + 1j),
    "sums": lambda d: [waves(d).sum(), waves(d).mean(0), waves(d).cumsum(1), waves(d).prod(0)],
    "solved": lambda d: torch.linalg.solve(waves(d, 4, 4) + 3 * torch.eye(4, device=d), waves(d, 4, 2)),
    "gradient of the absolute": lambda d: _gradient(d, lambda z: z.abs().sum()),
    "gradient of parts": lambda d: _gradient(d, lambda z: (z.real * z.imag).sum()),
    "gradient of a conjugate": lambda d: _gradient(d, lambda z: (z.conj() * z * z).imag.sum()),
    "gradient of a transform": lambda d: _gradient(d, lambda z: torch.fft.fft(z).abs().square().sum()),
    "gradient of a product": lambda d: _gradient(d, lambda z: (z @ z.mH).real.sum()),
    "gradient of pairs": lambda d: _gradient(d, lambda z: torch.view_as_real(z).prod(-1).sum()),
}


def _gradient(device: torch.device, function: Function) -> Tensor:
    z = waves(device).requires_grad_()
    return torch.autograd.grad(function(z), z)[0]


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(device: torch.device, name: str) -> None:
    assert_agrees(COMPLEX[name], device, {"rtol": 1e-4, "atol": 1e-4})


def test_parts_and_conjugates_are_views(device: torch.device) -> None:
    z = waves(device, 5)
    lazy = z.conj()
    assert lazy.is_conj()
    assert lazy.data_ptr() == z.data_ptr() == z.real.data_ptr()
    assert lazy.imag.is_neg()
    assert not (lazy * 1).is_conj()
    z.real.zero_()
    torch.view_as_real(z)[..., 1] = 2
    assert lazy.tolist() == [-2j] * 5
    lazy.mul_(1j)
    assert z.tolist() == [2 + 0j] * 5 or z.tolist() == [complex(2, -0.0)] * 5
    with pytest.raises(RuntimeError, match="conj"):
        torch.view_as_real(lazy)


@pytest.mark.parametrize("size", [(8,), (7,), (4, 6), (3, 5, 4)], ids=str)
def test_transforms_and_back(device: torch.device, size: tuple[int, ...]) -> None:
    x, z = numbers(*size, device=device), waves(device, *size)
    torch.testing.assert_close(torch.fft.ifftn(torch.fft.fftn(z)), z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.fft.irfftn(torch.fft.rfftn(x), s=size), x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.fft.ifftshift(torch.fft.fftshift(z)), z)
    assert_agrees(lambda d: torch.fft.fftn(waves(d, *size), norm="ortho"), device)
