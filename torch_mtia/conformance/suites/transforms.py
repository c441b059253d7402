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
from torch.utils import _pytree as pytree

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


# Of a matrix of 3 x 3, for vmap over four of them.
OF_A_MATRIX: dict[str, Callable[[Tensor], Any]] = {
    "inv": lambda a: torch.linalg.inv(a + 5 * torch.eye(3, device=a.device)),
    "det": torch.linalg.det,
    "solve": lambda a: torch.linalg.solve(a + 5 * torch.eye(3, device=a.device), a),
    "svdvals": torch.linalg.svdvals,
    "topk": lambda a: a.topk(2),
    "argmax": lambda a: a.argmax(-1),
    "cross_entropy": lambda a: F.cross_entropy(a, torch.tensor([0, 1, 2], device=a.device)),
    "scatter": lambda a: a.scatter(0, torch.zeros(1, 3, dtype=torch.long, device=a.device), 9.0),
    "index_fill": lambda a: a.index_fill(0, torch.tensor([1], device=a.device), 2.0),
    "attention": lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]),
    "fft": lambda a: torch.fft.fft(a).abs(),
    "max_pool1d": lambda a: F.max_pool1d(a, 2),
    "einsum": lambda a: torch.einsum("ij,kj->ik", a, a),
    "masked_fill": lambda a: a.masked_fill(a > 0, 0),
    "batch_norm": lambda a: F.batch_norm(a, None, None, training=True),
    "group_norm": lambda a: F.group_norm(a[None], 3),
    "embedding": lambda a: F.embedding(torch.tensor([0, 2], device=a.device), a),
    "searchsorted": lambda a: torch.searchsorted(a[0].sort().values, a[1]),
    "flip and roll": lambda a: a.flip(0).roll(1, 0),
    "tril": lambda a: a.tril(),
    "cumprod": lambda a: a.cumprod(0),
    "conv2d": lambda a: F.conv2d(a[None, None], a[None, None, :2, :2]),
    "quantile": lambda a: a.quantile(0.3),
    "copy_": lambda a: a.clone().copy_(a.t()),
    "new_zeros": lambda a: a.new_zeros(3) + a,
}


@pytest.mark.parametrize("name", OF_A_MATRIX)
def test_vmap(device: torch.device, name: str) -> None:
    """As often as there are matrices, and as the CPU does it."""

    def call(d: torch.device) -> Any:
        return func.vmap(OF_A_MATRIX[name])(numbers(4, 3, 3, device=d))

    assert_agrees(call, device, {"rtol": 1e-3, "atol": 1e-4})
    one_by_one = [OF_A_MATRIX[name](a) for a in numbers(4, 3, 3, device=device)]
    stacked = pytree.tree_map(lambda *parts: torch.stack(parts), *one_by_one)
    torch.testing.assert_close([*pytree.tree_leaves(call(device))], [*pytree.tree_leaves(stacked)])


AUTOGRAD: dict[str, Callable[[Tensor], Any]] = {
    "gradient of a gradient": lambda x: func.grad(lambda y: func.grad(lambda z: (z.sin() * z).sum())(y).sum())(x),
    "product with the hessian": lambda x: torch.autograd.functional.hvp(lambda a: (a**3).sum(), x, x.cos())[1],
    "many gradients at once": lambda x: _batched(x.requires_grad_()),
    "with anomalies detected": lambda x: _watched(x.requires_grad_()),
}


def _batched(x: Tensor) -> Any:
    return torch.autograd.grad(x.exp(), x, torch.eye(5, device=x.device), is_grads_batched=True)


def _watched(x: Tensor) -> Any:
    with torch.autograd.detect_anomaly():
        return torch.autograd.grad(x.exp().sum(), x)


@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd(device: torch.device, name: str) -> None:
    assert_agrees(lambda d: AUTOGRAD[name](numbers(5, device=d)), device)


def test_anomalies_are_found(device: torch.device) -> None:
    x = torch.zeros(3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="nan"), torch.autograd.detect_anomaly():
        (x.sqrt() * 0).sum().backward()


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
    "kinds of elementary": lambda d: [
        f(waves(d))
        for f in (torch.sinh, torch.acos, torch.atan, torch.expm1, torch.log1p, torch.rsqrt, torch.reciprocal)
    ],
    "statistics": lambda d: [waves(d).var(), waves(d).std(0), waves(d).norm(), waves(d).cumprod(0)],
    "products": lambda d: [torch.kron(waves(d), waves(d)), torch.outer(waves(d, 3).conj(), waves(d, 4))],
    "joined lazy ones": lambda d: [torch.cat([waves(d).conj(), waves(d)]), torch.stack([waves(d).conj(), waves(d)])],
    "convolution": lambda d: F.conv1d(waves(d)[None], waves(d, 2, 4, 3)),
    "eigenvalues": lambda d: torch.linalg.eigvals(waves(d, 4, 4)).abs().sort().values,
    "hermitian transforms": lambda d: [torch.fft.hfft(waves(d)), torch.fft.ihfft(numbers(4, 6, device=d))],
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
