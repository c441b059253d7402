"""An operator without a kernel of its own runs on the CPU, and nobody can tell from its results.

To add a case: a row in CASES. A case is run on the device and on the CPU with the same arguments; results, strides,
devices and what became of the arguments have to agree.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from tests.conftest import RunScript

Function = Callable[..., Any]

# A library of operators that have kernels for the CPU only.
LIBRARY = torch.library.Library("mtia_test", "DEF")
LIBRARY.define("scaled(Tensor x, float factor=2.0, Tensor? bias=None) -> Tensor")
LIBRARY.define("first_half(Tensor(a) x) -> Tensor(a)")
LIBRARY.define("increment_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.define("increment_all(Tensor(a!)[] xs) -> ()")
LIBRARY.define("gather_(Tensor(a!) host, Tensor x) -> (Tensor(a!), Tensor)")


@torch.library.impl(LIBRARY, "scaled", "CPU")
def _scaled(x: torch.Tensor, factor: float = 2.0, bias: torch.Tensor | None = None) -> torch.Tensor:
    assert x.device.type == "cpu"
    result = torch.from_numpy(x.numpy() * factor)
    return result if bias is None else result + bias


@torch.library.impl(LIBRARY, "first_half", "CPU")
def _first_half(x: torch.Tensor) -> torch.Tensor:
    return x[: len(x) // 2]


@torch.library.impl(LIBRARY, "increment_", "CPU")
def _increment(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


@torch.library.impl(LIBRARY, "increment_all", "CPU")
def _increment_all(xs: list[torch.Tensor]) -> None:
    for x in xs:
        x.add_(1)


@torch.library.impl(LIBRARY, "gather_", "CPU")
def _gather(host: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return host.copy_(x), x + 1


def assert_same_on(device: torch.device, function: Function, *arguments: Any) -> None:
    """Runs function(*arguments) on the CPU and, with every tensor among the arguments moved, on the device."""

    def run(where: torch.device) -> tuple[Any, Any]:
        moved = pytree.tree_map_only(torch.Tensor, lambda x: x.clone().to(where), arguments)
        return function(*moved), moved

    (actual, actual_arguments), (expected, expected_arguments) = run(device), run(torch.device("cpu"))
    for tensor, reference in zip(
        pytree.tree_leaves((actual, actual_arguments)), pytree.tree_leaves((expected, expected_arguments)), strict=True
    ):
        if isinstance(reference, torch.Tensor):
            assert tensor.device == device
            assert tensor.stride() == reference.stride()
            torch.testing.assert_close(tensor.cpu(), reference, equal_nan=True)
        else:
            assert tensor == reference


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers that are the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randn(shape, generator=generator, dtype=dtype)


def positive_definite(size: int) -> torch.Tensor:
    x = r(size, size)
    return x @ x.t() + size * torch.eye(size)


X, Y, B = r(4, 5), r(4, 5) + 3, r(4, 5) > 0
INDEX, Z = torch.tensor([2, 0, 2]), r(4, 3, dtype=torch.complex64)
IMAGE, NOTHING = r(2, 3, 8, 8), torch.empty(0, 5)

CASES: dict[str, tuple[Any, ...]] = {
    # The number comes first: the result still belongs to the device.
    "2 // b": (lambda b: 2 // b, Y),
    "2 / b": (lambda b: 2 / b, Y),
    "2 ** b": (lambda b: 2**b, Y),
    "2 % b": (lambda b: 2 % b, Y),
    "2 - b": (lambda b: 2 - b, Y),
    "2 < b": (lambda b: operator.lt(2, b), Y),
    "number // b": (lambda b: torch.tensor(2.0) // b, Y),
    "number atan2 b": (lambda b: torch.atan2(torch.tensor(2.0), b), Y),
    "where(c, 1, b)": (lambda c, b: torch.where(c, 1.0, b), B, Y),
    "where(c, a, number)": (lambda c, a: torch.where(c, a, torch.tensor(2.0)), B, Y),
    "5 in b": (lambda b: 5 in b, torch.arange(9)),
    # The result is allocated by the operator, and resized.
    "abs": (torch.abs, X),
    "abs of complex": (torch.abs, Z),
    "angle": (torch.angle, Z),
    "isfinite": (torch.isfinite, X / 0),
    "isinf": (torch.isinf, X / 0),
    "sgn": (torch.sgn, Z),
    "erfinv": (torch.erfinv, X),
    "cumsum": (torch.cumsum, X, 1),
    "sum": (torch.sum, X),
    "mean over a dimension": (lambda x: x.mean(1, keepdim=True), X),
    "var_mean": (lambda x: torch.var_mean(x, 1), X),
    "of a transposed": (lambda x: torch.erf(x.t()), X),
    "of an expanded": (lambda x: torch.exp(x[:, :1].expand(4, 5)), X),
    "of a scalar": (torch.exp, torch.tensor(2.0)),
    "mixed dtypes": (torch.atan2, X, torch.arange(5)),
    # Several results.
    "sort": (lambda x: torch.sort(x, descending=True), X),
    "topk": (lambda x: x.topk(2), X),
    "max": (lambda x: x.max(1), X),
    "kthvalue": (lambda x: x.kthvalue(2), X),
    "frexp": (torch.frexp, X),
    "split": (lambda x: torch.split(x, 2), X),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), X[0], Y[:, 0]),
    # The shape of the result depends on the data.
    "nonzero": (torch.nonzero, B),
    "nonzero of nothing": (torch.nonzero, torch.zeros(3)),
    "unique": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), INDEX),
    "unique_consecutive": (torch.unique_consecutive, INDEX),
    "masked_select": (torch.masked_select, X, B),
    "boolean index": (lambda x, b: x[b], X, B),
    "where": (torch.where, B),
    "bincount": (torch.bincount, INDEX),
    "repeat_interleave": (torch.repeat_interleave, X[0], torch.tensor([1, 0, 2, 1, 1])),
    # In place.
    "erfinv_": (lambda x: x.erfinv_(), X),
    "in place on a slice": (lambda x: x[1:, ::2].exp_(), X),
    "in place on a transposed": (lambda x: x.t().cumsum_(0), X),
    "in place with promotion": (lambda x: x.atan2_(torch.tensor(2)), X),
    "clamp_": (lambda x, low: x.clamp_(min=low), X, torch.zeros(5)),
    "masked_fill_": (lambda x, b: x.masked_fill_(b, -1), X, B),
    "index_put_": (lambda x, i: x.index_put_((i,), torch.tensor(3.0)), X, INDEX),
    "index_put_, accumulate": (lambda x, i, v: x.index_put_((i,), v, accumulate=True), X, INDEX, r(3, 5)),
    "assign to indices": (lambda x, i, v: operator.setitem(x, (slice(None), i), v), X, INDEX, r(4, 3)),
    "assign to a mask": (lambda x, b: operator.setitem(x, b, 0.0), X, B),
    "index_add_": (lambda x, i, v: x.index_add_(0, i, v, alpha=2), X, INDEX, r(3, 5)),
    "scatter_": (lambda x, i: x.scatter_(1, i.view(1, 3), 7.0), X, INDEX),
    "scatter_reduce_": (lambda x, i, v: x.scatter_reduce_(0, i, v, "amax"), X[0], INDEX, r(3)),
    "fill_diagonal_": (lambda x: x.fill_diagonal_(1), X),
    "an operand twice": (lambda x: x.hypot_(x), X),
    # out=
    "out": (lambda x, o: torch.erf(x, out=o), X, torch.empty(0)),
    "out, two": (lambda x, v, i: torch.sort(x, out=(v, i)), X, torch.empty(0), torch.empty(0, dtype=torch.long)),
    "out, strided": (lambda x, o: torch.erf(x, out=o.t()[::2]), X, torch.zeros(5, 8)),
    "out, another dtype": (lambda x, o: torch.erf(x, out=o), X, torch.empty(4, 5, dtype=torch.float64)),
    "out is the input": (lambda x: torch.erf(x, out=x), X),
    "out of a product": (lambda x, y, o: torch.mm(x, y.t(), out=o), X, Y, torch.empty(0)),
    # Lists of tensors, optional tensors.
    "cat": (lambda x, y: torch.cat([x, y], 1), X, Y),
    "cat with nothing": (lambda x, y: torch.cat([x, y]), NOTHING, Y),
    "cat, out": (lambda x, y, o: torch.cat([x, y], out=o), X, Y, torch.empty(0)),
    "stack": (lambda x, y: torch.stack([x, y], 1), X, Y),
    "block_diag": (torch.block_diag, X, Y),
    "index with None": (lambda x, i: x[None, i, :, i.new_ones(1)], X.unsqueeze(2).expand(4, 5, 3), INDEX),
    "_foreach_add": (lambda x, y: torch._foreach_add([x, y], 1.0), X, Y),
    "_foreach_mul_": (lambda x, y: torch._foreach_mul_([x, y], [y, y]), X, Y),
    "_foreach_addcdiv_": (lambda x, y: torch._foreach_addcdiv_([x], [y], [y], 0.5), X, Y),
    "_foreach_norm": (lambda x, y: torch._foreach_norm([x, y]), X, Y),
    "clamp with an optional": (lambda x, y: torch.clamp(x, max=y), X, Y),
    "layer_norm": (lambda x: F.layer_norm(x, (5,)), X),
    "nll_loss": (lambda x, i: F.nll_loss(x.log_softmax(1), i), X[:3], INDEX),
    "nll_loss with weights": (lambda x, i, w: F.nll_loss(x.log_softmax(1), i, w), X[:3], INDEX, r(5).abs()),
    # Scalars of all kinds.
    "addcmul": (lambda x, y: torch.addcmul(x, y, y, value=0.5), X, Y),
    "clamp": (lambda x: x.clamp(-0.5, 1), X),
    "pow": (lambda x: x**3, X),
    "threshold": (lambda x: F.threshold(x, 0.1, 20), X),
    "histc": (lambda x: torch.histc(x, bins=4, min=-1, max=1), X),
    # Nothing at all.
    "exp of nothing": (torch.exp, NOTHING),
    "sum of nothing": (torch.sum, NOTHING),
    "sum of nothing over a dimension": (lambda x: x.sum(0), NOTHING),
    "product with nothing": (torch.mm, torch.empty(3, 0), NOTHING),
    "linear with nothing": (F.linear, NOTHING, r(2, 5), r(2)),
    "exp_ of nothing": (lambda x: x.exp_(), NOTHING),
    "sort of nothing": (torch.sort, NOTHING),
    # Linear algebra.
    "addmm": (torch.addmm, r(6), X, r(5, 6)),
    "bmm": (torch.bmm, r(2, 3, 4), r(2, 4, 5)),
    "matmul": (torch.matmul, r(2, 1, 3, 4), r(5, 4, 6)),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), X, Y),
    "inv": (torch.linalg.inv, positive_definite(4)),
    "cholesky": (torch.linalg.cholesky, positive_definite(4)),
    "solve": (torch.linalg.solve, positive_definite(4), r(4, 2)),
    "eigh": (torch.linalg.eigh, positive_definite(4)),
    "svd": (lambda x: torch.linalg.svd(x, full_matrices=False), X),
    "qr": (torch.linalg.qr, X),
    "det": (torch.linalg.det, positive_definite(4)),
    "lstsq": (lambda x, y: torch.linalg.lstsq(x, y).solution, r(6, 3), r(6, 2)),
    # Complex numbers.
    "product of complex": (torch.mm, Z, Z.t()),
    "of a conjugate": (lambda z: z.mH @ z, Z),
    "of a negative": (lambda z: z.conj().imag.exp(), Z),
    "in place on a conjugate": (lambda z: z.conj().exp_(), Z),
    "polar": (torch.polar, X.abs(), Y),
    "fft": (lambda x: torch.fft.rfft(x, dim=1), X),
    "ifft": (torch.fft.ifft, Z),
    "complex": (torch.complex, X, Y),
    # Networks.
    "conv2d": (F.conv2d, IMAGE, r(4, 3, 3, 3), r(4)),
    "conv2d, channels last": (F.conv2d, IMAGE.to(memory_format=torch.channels_last), r(4, 3, 3, 3)),
    "conv1d, grouped": (lambda x, w: F.conv1d(x, w, stride=2, groups=2), r(2, 4, 9), r(6, 2, 3)),
    "conv_transpose2d": (F.conv_transpose2d, IMAGE, r(3, 4, 2, 2)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    "batch_norm, eval": (lambda x, m, v: F.batch_norm(x, m, v), IMAGE, r(3), r(3).abs()),
    "batch_norm, eval, affine": (F.batch_norm, IMAGE, r(3), r(3).abs(), r(3), r(3)),
    "batch_norm, training": (lambda x, m, v: F.batch_norm(x, m, v, training=True), IMAGE, r(3), r(3).abs()),
    "batch_norm without statistics": (lambda x: F.batch_norm(x, None, None, training=True), IMAGE),
    "group_norm": (lambda x, w: F.group_norm(x, 3, w), IMAGE, r(3)),
    "embedding": (F.embedding, INDEX, r(4, 3)),
    "embedding_bag": (lambda i, w: F.embedding_bag(i.view(1, 3), w), INDEX, r(4, 3)),
    "softmax": (lambda x: x.softmax(1), X),
    "attention": (F.scaled_dot_product_attention, r(1, 2, 4, 8), r(1, 2, 4, 8) + 1, r(1, 2, 4, 8) + 2),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE, r(2, 4, 4, 2)),
    "ctc_loss": (
        lambda x, t: torch.ctc_loss(x.log_softmax(2), t, [6, 6], [2, 2]),
        r(6, 2, 5),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),
    ),
    # Operators from elsewhere.
    "custom": (torch.ops.mtia_test.scaled, X),
    "custom, with an optional": (torch.ops.mtia_test.scaled, X, 3.0, Y),
    "custom, large": (torch.ops.mtia_test.scaled, torch.arange(2.0**18)),
    "custom, in place": (torch.ops.mtia_test.increment_, X),
    "custom, in place on a list": (lambda x, y: torch.ops.mtia_test.increment_all([x, y]), X, Y),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_cpu(device: torch.device, name: str) -> None:
    assert_same_on(device, *CASES[name])


FACTORIES: dict[str, Callable[[torch.device], torch.Tensor]] = {
    "triu_indices": lambda d: torch.triu_indices(3, 4, device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 4, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 7, device=d),
    "logspace": lambda d: torch.logspace(0, 1, 7, device=d),
    "eye": lambda d: torch.eye(3, 4, device=d),
    "range": lambda d: torch.arange(0, 10, 3, device=d),
    "hann_window": lambda d: torch.hann_window(8, device=d),
    "vander": lambda d: torch.vander(torch.arange(3, device=d)),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    "a zero without memory": lambda d: torch._efficientzerotensor((3,), device=d),
    "fftfreq": lambda d: torch.fft.fftfreq(5, device=d),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_without_a_tensor_argument(device: torch.device, name: str) -> None:
    made = FACTORIES[name](device)
    assert made.device == device
    torch.testing.assert_close(made.cpu(), FACTORIES[name](torch.device("cpu")))


def test_randperm(device: torch.device) -> None:
    x = torch.randperm(100, device=device)
    assert (x.device, sorted(x.tolist())) == (device, list(range(100)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64], ids=str)
def test_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    x = (r(4, 5) * 4).to(dtype)
    assert_same_on(device, lambda x: (x.sum(0), x.prod(1), x == x, torch.cat([x, x]), x.reciprocal()), x)


@pytest.mark.parametrize("function", [torch.erfinv, torch.special.i0e, lambda x: x.cumsum(0), torch.sum])
def test_large_tensors(device: torch.device, function: Function) -> None:
    assert_same_on(device, function, torch.linspace(-0.9, 0.9, 2**22))


def test_work_before_is_seen_and_work_after_sees(device: torch.device) -> None:
    x = torch.zeros(2**22, device=device)
    for _ in range(10):
        x.add_(1)
        x.neg_()
        x.mul_(-1)
    assert (x.cpu() == 10).all()


def test_results_are_returned_in_place(device: torch.device) -> None:
    x = torch.rand(4, device=device)
    out = torch.empty(4, device=device)
    version, base = x._version, x.view(2, 2)
    assert x.put_(torch.tensor([1], device=device), torch.ones(1, device=device)) is x
    assert torch.cumsum(x, 0, out=out) is out
    assert x._version == base._version == version + 1
    values, indices = torch.empty(0, device=device), torch.empty(0, dtype=torch.long, device=device)
    result = torch.sort(x, out=(values, indices))
    assert result[0] is values
    assert result[1] is indices


def test_a_view_operator_returns_a_view(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    half = torch.ops.mtia_test.first_half(x)
    assert half.device == device
    assert half.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    half.fill_(1)
    assert x.tolist() == [1, 1, 0, 0]


def test_gradients_flow_through(device: torch.device) -> None:
    def gradients(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.requires_grad_(), w.requires_grad_()]
        y = F.conv2d(leaves[0], leaves[1]).erf()
        loss = y.sort(1).values.cumsum(1).logsumexp(1).std() + x[x > 0].square().sum()
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    assert_same_on(device, gradients, IMAGE, r(4, 3, 3, 3))


@pytest.mark.parametrize("module", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_networks(device: torch.device, module: type[torch.nn.LSTM | torch.nn.GRU]) -> None:
    network = module(3, 4, num_layers=2, bidirectional=True)
    x = r(5, 2, 3)
    expected, _ = network(x)
    actual, _ = network.to(device)(x.to(device))
    torch.testing.assert_close(actual.cpu(), expected)


def test_vmap_and_functional_transforms(device: torch.device) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).erf().sum()

    assert_same_on(device, torch.func.vmap(function), X, Y)
    assert_same_on(device, torch.func.jacrev(torch.erf), X[0])


MISMATCHES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "pointwise": torch.atan2,
    "product": lambda x, y: torch.mm(x, y.t()),
    "list": lambda x, y: torch.cat([x, y]),
    "bias": lambda x, y: F.linear(x, x, y[0, :4]),
    "index": lambda x, y: torch.index_select(x, 0, y.argmax(1)),
    "out": lambda x, y: torch.erf(x, out=y),
    "in place": lambda x, y: x.atan2_(y),
}


@pytest.mark.parametrize("host_first", [False, True], ids=["device first", "host first"])
@pytest.mark.parametrize("name", MISMATCHES)
def test_operands_on_two_devices_raise(name: str, host_first: bool) -> None:
    host, there = torch.ones(4, 5), torch.ones(4, 5, device="mtia")
    operands = (host, there) if host_first else (there, host)
    with pytest.raises(RuntimeError, match=r"(?i)same device|expected .* device"):
        MISMATCHES[name](*operands)


def test_a_number_of_the_cpu_is_not_written(device: torch.device) -> None:
    out = torch.zeros(())
    with pytest.raises(RuntimeError, match="same device"):
        torch.cholesky_inverse(torch.eye(2, device=device), out=out)
    assert out.shape == ()


def test_numbers_and_indices_of_the_cpu_are_welcome(device: torch.device) -> None:
    x = X.to(device)
    assert torch.equal(x[INDEX].cpu(), X[INDEX])
    assert torch.equal(x[B].cpu(), X[B])
    assert torch.equal(torch.atan2(x, torch.tensor(2.0)).cpu(), torch.atan2(X, torch.tensor(2.0)))
    assert torch.equal(x.masked_fill(B.to(device), torch.tensor(2.0)).cpu(), X.masked_fill(B, 2.0))


def test_a_result_that_is_an_argument_on_the_cpu_stays_there(device: torch.device) -> None:
    host, x = torch.zeros(3), torch.ones(3, device=device)
    result, other = torch.ops.mtia_test.gather_(host, x)
    assert host.tolist() == [1, 1, 1]
    assert result.data_ptr() == host.data_ptr()
    assert (result.device.type, other.device) == ("cpu", device)


def test_operands_on_two_accelerators_raise(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        x, y = torch.ones(3, device="mtia:0"), torch.ones(3, device="mtia:1")
        for call in (torch.add, torch.mul, torch.atan2, torch.dot, lambda x, y: torch.cat([x, y]), torch.Tensor.pow_):
            for operands in ((x, y), (y, x)):
                try:
                    call(*operands)
                except RuntimeError as error:
                    assert "mtia:0" in str(error) and "mtia:1" in str(error), error
                else:
                    raise AssertionError(call)
        assert torch.atan2(x, x).device.index == 0 and torch.atan2(y, y).device.index == 1
        """,
        TORCH_MTIA_DEVICES="2",
    )
    finished.output()


def test_threads_may_fall_back_at_once(device: torch.device) -> None:
    def work(seed: int) -> bool:
        x = r(seed + 2, 50)
        y = x.to(device)
        return all(torch.equal(y.cumsum(1).sort(0).values.cpu(), x.cumsum(1).sort(0).values) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_who_seeds_the_cpu_while_an_operator_draws_keeps_the_seed(device: torch.device) -> None:
    library = torch.library.Library("mtia_seeds", "DEF")
    library.define("seed(Tensor x) -> Tensor", tags=[torch.Tag.nondeterministic_seeded])
    library.define("draw(Tensor x) -> Tensor", tags=[torch.Tag.nondeterministic_seeded])

    def seed(x: torch.Tensor) -> torch.Tensor:
        torch.default_generator.manual_seed(123)
        return x + 1

    library.impl("seed", seed, "CPU")
    library.impl("draw", torch.rand_like, "CPU")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        before = torch.default_generator.get_state()
        torch.ops.mtia_seeds.draw(torch.ones(3, device=device))
        assert device.type == "cpu" or torch.equal(torch.default_generator.get_state(), before)
        torch.ops.mtia_seeds.seed(torch.ones(3, device=device))
        assert torch.default_generator.initial_seed() == 123
    library._destroy()
