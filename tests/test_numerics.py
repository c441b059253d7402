"""What `torch_mtia.numerics` promises: docs/accuracy.md, "Bits that are promised"."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import make_tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, ReductionOpInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

import torch_mtia
from tests.bits import bits, randn, same, threads
from torch_mtia.backend import device_type

if TYPE_CHECKING:
    from tests.conftest import RunScript

Tensor = torch.Tensor
Function = Callable[..., Any]

REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*REAL, torch.complex64, torch.complex128)
COUNTS = (1, 2, 3, 7, 33)  # of rows


@pytest.fixture
def invariant() -> Iterator[None]:
    with torch_mtia.numerics("batch_invariant"):
        yield


# Matmuls ------------------------------------------------------------------------------------------------------------

# Rows, depth, columns: what is one tile, one block, one piece of the sum, and more than one of each.
SIZES = ((40, 300, 70), (40, 5, 3), (250, 1, 20), (35, 1031, 300), (200, 256, 128), (34, 257, 129))


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_of_matmuls_do_not_depend_on_how_many_there_are(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, depth, columns = sizes
    x, w, bias = randn(rows, depth, dtype=dtype), randn(depth, columns, dtype=dtype), randn(columns, dtype=dtype)
    batches, matrices = randn(3, rows, depth, dtype=dtype), randn(3, depth, columns, dtype=dtype)
    for count in COUNTS:
        assert same((x @ w)[:count], x[:count] @ w)
        assert same(F.linear(x, w.t(), bias)[:count], F.linear(x[:count], w.t(), bias))
        added = torch.addmm(bias, x, w, beta=0.3, alpha=0.7)
        assert same(added[:count], torch.addmm(bias, x[:count], w, beta=0.3, alpha=0.7))
        assert same(torch.bmm(batches, matrices)[:, :count], torch.bmm(batches[:, :count], matrices))
        assert same(torch.bmm(batches, matrices)[:1], torch.bmm(batches[:1], matrices[:1]))
        assert same(
            torch.baddbmm(bias, batches, matrices, beta=2)[:, :count],
            torch.baddbmm(bias, batches[:, :count], matrices, beta=2),
        )
        assert same((batches @ w)[:, :count], batches[:, :count] @ w)
        assert same(
            torch.einsum("bik,kj->bij", batches, w)[:, :count], torch.einsum("bik,kj->bij", batches[:, :count], w)
        )


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_matmuls_agree(dtype: torch.dtype) -> None:
    x, w = randn(40, 300, dtype=dtype), randn(300, 70, dtype=dtype)
    product = x @ w
    assert same(product[:, 5], x @ w[:, 5])
    assert same(product[3, 5], x[3] @ w[:, 5])
    assert same(product[3, 5], torch.vdot(x[3].conj(), w[:, 5]))
    assert same(product[:, 5], torch.addmv(x[:, 0], x, w[:, 5], beta=0))
    assert same(product, torch.bmm(x[None], w[None])[0])
    assert same(product, (w.t() @ x.t()).t())
    assert same(product[:, 5], (x[:, None] @ w[:, 5:6])[:, 0, 0])
    out = torch.full_like(product, float("nan")).t().contiguous().t()
    torch.mm(x, w, out=out)
    assert same(product, out)
    square = randn(40, 40, dtype=dtype)
    expected = square @ square
    assert same(expected, torch.mm(square, square, out=square))


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matmuls_do_not_depend_on_strides(dtype: torch.dtype) -> None:
    layouts: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x, x], 1)[:, : x.size(1)],
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: torch._neg_view(x.neg()),
        lambda x: x.conj().clone().conj() if x.is_complex() else x.clone(),
    )
    x, w = randn(40, 300, dtype=dtype), randn(300, 70, dtype=dtype)
    for one in layouts:
        for other in layouts:
            assert same(x @ w, one(x) @ other(w))


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(33, 300, 70), (1, 1031, 300), (4, 0, 6), (0, 5, 6)], ids=str)
def test_matmuls_are_right(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, depth, columns = sizes
    x, w, bias = randn(rows, depth, dtype=dtype), randn(depth, columns, dtype=dtype), randn(columns, dtype=dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = 0.5 * (x.cpu().to(wide) @ w.cpu().to(wide)) + 2 * bias.cpu().to(wide)
    result = torch.addmm(bias, x, w, alpha=0.5, beta=2)
    assert result.dtype == dtype
    rounding = torch.finfo(dtype).eps if dtype in REAL[2:] else 2e-6
    error = (result.cpu().to(wide) - exact).abs()
    assert (error <= rounding * (exact.abs() + depth**0.5 + 1)).all()
    unread = torch.addmm(torch.full_like(bias, float("nan")), x, w, beta=0)
    assert same(unread, x @ w)


@pytest.mark.usefixtures("invariant")
def test_wrong_arguments_raise_what_they_raise() -> None:
    x = randn(4, 5)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        x @ x
    with pytest.raises(RuntimeError, match="same dtype"):
        x @ x.double().t()
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.addmm(x.double(), x, randn(5, 5))
    with pytest.raises(RuntimeError, match="size"):
        x[0] @ x[0, :3]


# Convolutions -------------------------------------------------------------------------------------------------------

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((5, 6, 40), (8, 6, 3), {}),
    "2d": ((5, 6, 14, 15), (8, 6, 3, 3), {"padding": 1}),
    "strided, dilated": ((5, 6, 17, 15), (8, 6, 3, 2), {"stride": (2, 3), "dilation": (2, 1), "padding": (1, 2)}),
    "groups": ((5, 6, 14, 15), (9, 2, 3, 3), {"groups": 3}),
    "depthwise": ((5, 6, 14, 15), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
    "3d": ((5, 4, 7, 8, 9), (6, 4, 3, 2, 1), {"stride": 2}),
    "transposed": ((5, 6, 9, 10), (6, 4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "transposed, groups": ((5, 6, 9, 10), (6, 2, 3, 2), {"groups": 3, "dilation": 2}),
}


def convolution(sizes: tuple[int, ...], options: dict[str, Any], name: str) -> Function:
    transposed = "conv_transpose" if name.startswith("transposed") else "conv"
    function: Function = getattr(F, f"{transposed}{len(sizes) - 2}d")
    return lambda x, w, b: function(x, w, b, **options)


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, dtype: torch.dtype) -> None:
    sizes, weight_sizes, options = CONVOLUTIONS[name]
    function = convolution(sizes, options, name)
    x, w = randn(*sizes, dtype=dtype).requires_grad_(), randn(*weight_sizes, dtype=dtype).requires_grad_()
    channels = weight_sizes[1] * options.get("groups", 1) if name.startswith("transposed") else weight_sizes[0]
    bias = randn(channels, dtype=dtype).requires_grad_()
    result = function(x, w, bias)
    gradient = randn(*result.shape, dtype=dtype)
    gradients = torch.autograd.grad(result, (x, w, bias), gradient)
    exact = [value.detach().cpu().double().requires_grad_() for value in (x, w, bias)]
    expected = function(*exact)
    expected_gradients = torch.autograd.grad(expected, exact, gradient.cpu().double())
    rounding = max(torch.finfo(dtype).eps, 1e-6)
    for one, other in zip((result, *gradients), (expected, *expected_gradients), strict=True):
        assert one.dtype == dtype
        assert one.shape == other.shape
        assert (one.detach().cpu().double() - other).abs().max() <= 2 * rounding * other.abs().max()
    for count in (1, 2, 3):
        part = x[:count].detach().requires_grad_()
        few = function(part, w, bias)
        assert same(result[:count], few)
        assert same(gradients[0][:count], torch.autograd.grad(few, part, gradient[:count])[0])
    last = x.detach().to(memory_format=torch.channels_last) if len(sizes) == 4 else x.detach().clone()
    assert same(result, function(last, w, bias))


# The database -------------------------------------------------------------------------------------------------------

NEEDS_MORE = ("jiterator", "fill", "polygamma", "prelu", "threshold", "mvlgamma", "masked.")


def database(*kinds: type[OpInfo]) -> list[OpInfo]:
    infos = [info for info in op_db if isinstance(info, kinds)]
    return [info for info in infos if not any(name in info.name for name in NEEDS_MORE)]


def operands(info: OpInfo, dtype: torch.dtype, *sizes: int) -> list[Tensor]:
    torch.manual_seed(0)
    count = 2 if isinstance(info, BinaryUfuncInfo) else 1
    return [make_tensor(sizes, dtype=dtype, device="cpu", low=0.1, high=0.9).to(device_type()) for _ in range(count)]


def name_of(info: OpInfo) -> str:
    return f"{info.name}.{info.variant_test_name}".rstrip(".")


# Of rows, beside those of the database.
SUMS: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm of 3": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x[:, : x.size(1) // 4 * 4].unflatten(1, (4, -1)), 2),
    "batch_norm, evaluated": lambda x: F.batch_norm(x, x[0] * 0, x[0] * 0 + 2),
    "normalize": F.normalize,
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x), device=x.device) % x.size(1), reduction="none"),
}
ROWS: dict[str, Function] = {
    **SUMS,
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "elu": F.elu,
    "silu, mul": lambda x: F.silu(x) * x,
    "glu": lambda x: F.glu(x[:, : x.size(1) // 2 * 2]),
    "add, scaled": lambda x: torch.add(x, x, alpha=0.3),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "clamp": lambda x: x.clamp(0.2, 0.7),
    "where": lambda x: torch.where(x > 0.5, x, 1 / x),
}


# ATen has another function for one result.
NOT_ONE_ROW = ("var", "std", "var.unbiased", "std.unbiased")


def functions() -> dict[str, tuple[Function, OpInfo | None]]:
    found: dict[str, tuple[Function, OpInfo | None]] = {name: (function, None) for name, function in ROWS.items()}
    for info in database(UnaryUfuncInfo, BinaryUfuncInfo):
        found[name_of(info)] = (info.op, info)
    for info in database(ReductionOpInfo):
        found[name_of(info)] = (lambda x, op=info.op: op(x, dim=-1), info)
    return found


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("dtype", [*REAL, torch.complex64], ids=str)
def test_rows_do_not_depend_on_how_many_there_are(dtype: torch.dtype) -> None:
    failed = []
    for name, (function, info) in functions().items():
        if dtype not in (REAL if info is None else info.supported_dtypes("cpu")):
            continue
        for columns in (5, 33, 300, 1001):
            inputs = operands(info or op_db[0], dtype, 40, columns)
            result = function(*inputs)
            for count in COUNTS[1:] if name in NOT_ONE_ROW else COUNTS:
                few = function(*[x[:count] for x in inputs])
                if not same([value[:count] for value in pytree.tree_leaves(result)], few):
                    failed.append((name, columns, count))
    assert not failed


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("dtype", [*REAL, torch.complex64], ids=str)
def test_elements_do_not_depend_on_strides(dtype: torch.dtype) -> None:
    failed = []
    for info in database(UnaryUfuncInfo, BinaryUfuncInfo):
        if dtype not in info.supported_dtypes("cpu"):
            continue
        inputs = operands(info, dtype, 40, 33)
        strided = [x.t().contiguous().t() for x in inputs]
        parts = [torch.cat([x, x], 1)[:, :33] for x in inputs]
        expected = info.op(*inputs)
        if not same(expected, info.op(*strided)) or not same(expected, info.op(*parts)):
            failed.append(name_of(info))
    assert not failed


# Threads ------------------------------------------------------------------------------------------------------------


def everything() -> dict[str, Callable[[], Any]]:
    """Calls that are large enough for several threads."""
    x, y = randn(200, 1003), randn(1003, 300)
    image, weight = randn(4, 8, 40, 40), randn(16, 8, 3, 3)
    calls: dict[str, Callable[[], Any]] = {
        name: functools.partial(function, x.abs() + 0.1) for name, function in ROWS.items()
    }
    calls |= {
        "mm": lambda: x @ y,
        "mm in bfloat16": lambda: x.bfloat16() @ y.bfloat16(),
        "sum of all": lambda: x.sum(),
        "mean of columns": lambda: x.mean(0),
        "prod of all": lambda: (1 + x * 1e-3).prod(),
        "var of all": lambda: x.var(),
        "norm of all": lambda: x.norm(),
        "logsumexp of all": lambda: x.logsumexp((0, 1)),
        "conv2d": lambda: F.conv2d(image, weight, padding=1),
        "index_add": lambda: torch.zeros(7, 1003, device=x.device).index_add_(
            0, torch.arange(200, device=x.device) % 7, x
        ),
        "qr": lambda: torch.linalg.qr(x)[1],
        "solve": lambda: torch.linalg.solve(x[:, :200] + 30 * torch.eye(200, device=x.device), x),
        "fft": lambda: torch.fft.fft(x),
        "_foreach_norm": lambda: torch._foreach_norm([x, y]),
        "avg_pool2d": lambda: F.avg_pool2d(image, 3),
        "interpolate": lambda: F.interpolate(image, scale_factor=2, mode="bilinear"),
        "gradients": lambda: gradients_of_a_network(image, weight),
    }
    return calls


def gradients_of_a_network(image: Tensor, weight: Tensor) -> Any:
    scale = torch.ones(16, device=image.device, requires_grad=True)
    weight = weight.clone().requires_grad_()
    hidden = F.conv2d(image, weight, padding=1)
    hidden = F.layer_norm(F.batch_norm(hidden, None, None, scale, training=True), hidden.shape[1:])
    hidden = F.silu(F.group_norm(hidden, 4, scale)).flatten(2).transpose(1, 2)
    hidden = F.scaled_dot_product_attention(hidden[:, None], hidden[:, None], hidden[:, None])
    return torch.autograd.grad(hidden.square().mean(), (weight, scale))


@pytest.mark.usefixtures("invariant")
def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    calls = everything()
    with threads(1):
        expected = {name: bits(call()) for name, call in calls.items()}
    failed = []
    for count in range(2, 9):
        with threads(count):
            failed += [(name, count) for name, call in calls.items() if not same(expected[name], call())]
    assert not failed


@pytest.mark.usefixtures("invariant")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("info", op_db, ids=name_of)
def test_bits_of_the_database_do_not_depend_on_the_number_of_threads(info: OpInfo) -> None:
    dtype = next((dtype for dtype in (torch.float32, torch.complex64) if dtype in info.supported_dtypes("cpu")), None)
    if dtype is None:
        return
    for sample in list(info.sample_inputs("cpu", dtype))[:5]:
        moved = sample.transform(lambda x: x.to(device_type()) if isinstance(x, Tensor) else x)
        results = []
        for count in (1, 2, 8):
            with threads(count):
                torch.manual_seed(0)
                values = [x.clone() if isinstance(x, Tensor) else x for x in (moved.input, *moved.args)]
                try:
                    results.append(info.op(*values, **moved.kwargs))
                except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError):
                    return  # what the device, or any device, does not have
        if "empty" not in info.name and info.name != "nn.functional.rrelu":
            assert same(results[0], results[1])
            assert same(results[0], results[2])


# Models -------------------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """A layer of a language model."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.gate = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(width), torch.nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        result: Tensor = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return result


def model(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(), Block(), torch.nn.Linear(64, 101)).to(dtype).to(device_type())


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_a_model_gives_a_row_the_same_bits_in_a_batch_of_any_size(dtype: torch.dtype) -> None:
    network, x = model(dtype), randn(6, 19, 64, dtype=dtype)
    expected = network(x)
    for count in (1, 2, 5):
        assert same(expected[:count], network(x[:count]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"max_autotune": True}], ids=["default", "max_autotune"])
def test_so_does_a_compiled_model(options: dict[str, Any], dtype: torch.dtype) -> None:
    network, x = model(dtype), randn(6, 19, 64, dtype=dtype)
    torch._dynamo.reset()
    compiled = torch.compile(network, options=options, dynamic=False)
    with torch.no_grad():
        compiled(x)  # compiled in another mode
        with torch_mtia.numerics("batch_invariant"):
            expected = compiled(x)
            assert (expected - network(x)).abs().max() <= 16 * torch.finfo(dtype).eps * expected.abs().max()
            for count in (1, 2):
                assert same(expected[:count], compiled(x[:count]))


COMPILED: dict[str, Function] = {
    "rows": lambda x: tuple(function(x) for function in SUMS.values()),
    "all": lambda x: (x.sum(), x.mean(), x.var(), x.norm(), x.prod(), x.std(0), x.sum(0), x.nansum(0), x.cumsum(0)),
    "matmuls": lambda x: (
        x @ x.t(),
        x.t() @ x,
        x @ x[0],
        x[0] @ x[0],
        x[:, None] @ x[:, :, None],
        F.linear(x, x, x[:, 0]),
    ),
    "losses": lambda x: (
        F.mse_loss(x, x * x),
        F.l1_loss(x, x * x),
        F.huber_loss(x, x * x),
        F.binary_cross_entropy(x, x),
    ),
    "image": lambda x: F.conv2d(x[None, None], x[None, None, :3, :3]),
}


@pytest.mark.parametrize("mode", torch_mtia.environment.NUMERICS[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", COMPILED)
def test_sums_are_the_eager_ones_in_compiled_code(name: str, dtype: torch.dtype, mode: str) -> None:
    function = COMPILED[name]
    x = (randn(40, 300).abs() % 0.8 + 0.1).to(dtype)
    torch._dynamo.reset()
    with torch_mtia.numerics(mode):
        eager, compiled = bits(function(x)), bits(torch.compile(function, dynamic=False)(x))
    failed = [place for place, (a, b) in enumerate(zip(eager, compiled, strict=True)) if not same(a, b)]
    assert not failed


@pytest.mark.parametrize("mode", torch_mtia.environment.NUMERICS[1:])
def test_sums_of_the_database_are_the_eager_ones_in_compiled_code(mode: str) -> None:
    x = randn(40, 300).abs() % 0.8 + 0.1
    infos = [info for info in database(ReductionOpInfo) if torch.float32 in info.supported_dtypes("cpu")]
    torch._dynamo.reset()

    def function(x: Tensor) -> Any:
        return [info.op(x, dim=-1) for info in infos] + [info.op(x, dim=0) for info in infos]

    with torch_mtia.numerics(mode):
        eager, compiled = function(x), torch.compile(function, dynamic=False)(x)
    names = [name_of(info) for info in infos] * 2
    assert not [name for name, a, b in zip(names, eager, compiled, strict=True) if not same(a, b)]


def test_gradients_are_the_eager_ones_in_compiled_code() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 100), torch.nn.LayerNorm(100), torch.nn.ReLU(), torch.nn.Linear(100, 57)
    network, x = torch.nn.Sequential(*layers).to(device_type()), randn(57, 64)
    torch._dynamo.reset()
    results = []
    with torch_mtia.numerics("batch_invariant"):
        for function in (network, torch.compile(network, dynamic=False)):
            loss = F.cross_entropy(function(x), torch.arange(57, device=device_type()))
            results.append((loss, torch.autograd.grad(loss, list(network.parameters()))))
    assert same(*results)


def test_a_graph_replays_as_it_was_captured() -> None:
    x, w = randn(33, 300), randn(300, 70)
    with torch_mtia.numerics("batch_invariant"):
        expected = (x @ w)[:1]
        few = x[:1].clone()
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph):
            result = few @ w
    graph.replay()
    assert same(expected, result)
    result.zero_()
    graph.replay()
    assert same(expected, result)


def test_triton_kernels_leave_sums_to_it(run_script: RunScript) -> None:
    script = """
        import torch, torch_mtia
        x = torch.randn(300, 400, device="mtia")
        w = torch.randn(400, 70, device="mtia")
        with torch_mtia.numerics("batch_invariant"):
            for f in (lambda x: x @ w, lambda x: x.softmax(-1), lambda x: x.sum(-1), lambda x: x * 2 + 1):
                assert torch.equal(f(x)[:1], f(x[:1]))
    """
    run_script(script, TORCH_MTIA_KERNELS="triton").output()
