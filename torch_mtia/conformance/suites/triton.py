"""Triton's language on the device, area by area: hand-written kernels, launched on the device's tensors."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from torch_mtia.torch_version import has_block_pointers  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.time_limit(300)]

N = 1000
BLOCK = 256


@pytest.fixture(autouse=True)
def _has_triton(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("Triton has no backend for the CPU")


def numbers(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(device)


def close(actual: torch.Tensor, expected: torch.Tensor, rtol: float | None = None, atol: float | None = None) -> None:
    torch.testing.assert_close(actual.cpu(), expected.cpu(), rtol=rtol, atol=atol)


@triton.jit
def masked_add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask, other=0.0), mask=mask)


def test_masked_loads_and_stores(device: torch.device) -> None:
    x, y = numbers(device, N), numbers(device, N)
    out = torch.zeros(N + 1, device=device)
    masked_add[(triton.cdiv(N, BLOCK),)](x, y, out, N, BLOCK=BLOCK)
    close(out[:N], x.cpu() + y.cpu())
    assert out[N].item() == 0


@triton.jit
def casts_and_bits(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    value = tl.load(x + offsets)
    bits = (value.to(tl.float32, bitcast=True) * 2).to(tl.int32) ^ (value >> 3)
    tl.store(out + offsets, bits & 0xFFFF)


def test_casts_and_bits(device: torch.device) -> None:
    floats = numbers(device, BLOCK) * 100
    out = torch.empty(BLOCK, dtype=torch.int32, device=device)
    casts_and_bits[(1,)](floats.view(torch.int32), out, BLOCK=BLOCK)
    bits = floats.cpu().view(torch.int32)
    assert torch.equal(out.cpu(), ((floats.cpu() * 2).to(torch.int32) ^ (bits >> 3)) & 0xFFFF)


@triton.jit
def row_softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, powers / tl.sum(powers, 0), mask=mask)


def test_reductions(device: torch.device) -> None:
    x = numbers(device, 7, 200)
    out = torch.empty_like(x)
    row_softmax[(7,)](x, out, 200, BLOCK=BLOCK)
    close(out, x.cpu().softmax(1))


@triton.jit
def indices_of_ends(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    values = tl.load(x + rows[:, None] * COLUMNS + columns[None, :])
    tl.store(out + rows, tl.argmax(values, 1))
    tl.store(out + ROWS + rows, tl.argmin(values, 1))


def test_indices_of_reductions(device: torch.device) -> None:
    x = numbers(device, 8, 64)
    out = torch.empty(2, 8, dtype=torch.int32, device=device)
    indices_of_ends[(1,)](x, out, ROWS=8, COLUMNS=64)
    assert out.tolist() == [x.cpu().argmax(1).tolist(), x.cpu().argmin(1).tolist()]


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def scans(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets)
    tl.store(out + offsets, tl.cumsum(values, 0))
    tl.store(out + BLOCK + offsets, tl.associative_scan(values, 0, larger))
    tl.store(out + 2 * BLOCK + offsets, tl.cumsum(values, 0, reverse=True))


def test_scans(device: torch.device) -> None:
    x = numbers(device, BLOCK)
    out = torch.empty(3, BLOCK, device=device)
    scans[(1,)](x, out, BLOCK=BLOCK)
    here = x.cpu()
    close(
        out, torch.stack([here.cumsum(0), here.cummax(0).values, here.flip(0).cumsum(0).flip(0)]), rtol=1e-4, atol=1e-4
    )


@triton.jit
def sorts(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.sort(tl.load(x + offsets)))


def test_sort(device: torch.device) -> None:
    x = numbers(device, BLOCK)
    out = torch.empty_like(x)
    sorts[(1,)](x, out, BLOCK=BLOCK)
    assert torch.equal(out.cpu(), x.cpu().sort().values)


@triton.jit
def counts(x, out, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n, other=0)
    tl.atomic_add(out + values % BINS, 1, mask=offsets < n)
    tl.atomic_max(out + BINS, tl.max(values, 0))


def test_atomics(device: torch.device) -> None:
    x = torch.arange(N, dtype=torch.int32, device=device)
    out = torch.zeros(8, dtype=torch.int32, device=device)
    counts[(triton.cdiv(N, BLOCK),)](x, out, N, BINS=7, BLOCK=BLOCK)
    assert out.tolist() == [*torch.bincount(torch.arange(N) % 7).tolist(), N - 1]


@triton.jit
def tiled_matmul(a, b, out, K, SIZE: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inner = tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, TILE):
        left = tl.load(a + rows[:, None] * K + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * SIZE + columns[None, :])
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out + rows[:, None] * SIZE + columns[None, :], total)


@pytest.mark.parametrize(
    ("dtype", "precision", "tolerance"),
    [
        pytest.param(torch.float32, "ieee", 1e-5, id="float32"),
        pytest.param(torch.float32, "tf32", 1e-2, id="tf32"),
        pytest.param(torch.float16, "ieee", 1e-4, id="float16"),
        pytest.param(torch.bfloat16, "ieee", 1e-4, id="bfloat16"),
    ],
)
def test_dot(device: torch.device, dtype: torch.dtype, precision: str, tolerance: float) -> None:
    a, b = numbers(device, 64, 96).to(dtype), numbers(device, 96, 64).to(dtype)
    out = torch.empty(64, 64, device=device)
    tiled_matmul[(2, 2)](a, b, out, 96, SIZE=64, TILE=32, PRECISION=precision)
    expected = (a.cpu().double() @ b.cpu().double()).float()  # sums of 16-bit products are float32
    close(out, expected, rtol=tolerance, atol=tolerance)


@triton.jit
def collatz(x, out, BLOCK: tl.constexpr):
    value = tl.load(x + tl.program_id(0))
    steps = 0
    while value > 1:
        if value % 2 == 0:
            value = value // 2
        else:
            value = 3 * value + 1
        steps += 1
    tl.store(out + tl.program_id(0), steps)


def test_control_flow(device: torch.device) -> None:
    out = torch.empty(5, dtype=torch.int32, device=device)
    collatz[(5,)](torch.tensor([1, 2, 3, 7, 27], dtype=torch.int32, device=device), out, BLOCK=1)
    assert out.tolist() == [0, 1, 7, 16, 111]


@triton.jit
def shapes(x, out, BLOCK: tl.constexpr):
    values = tl.reshape(tl.load(x + tl.arange(0, BLOCK)), (BLOCK // 4, 4))
    turned = tl.trans(values)
    first, second = tl.split(tl.reshape(turned, (4, BLOCK // 8, 2)))
    joined = tl.reshape(tl.join(second, first), (BLOCK,))
    tl.store(out + tl.arange(0, BLOCK), joined)


def test_shapes(device: torch.device) -> None:
    x = numbers(device, 64)
    out = torch.empty_like(x)
    shapes[(1,)](x, out, BLOCK=64)
    halves = x.cpu().view(16, 4).t().reshape(4, 8, 2)
    assert torch.equal(out.cpu(), halves.flip(2).reshape(-1))


@triton.jit
def draws(out, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.rand(seed, offsets))


def test_random_numbers(device: torch.device) -> None:
    out = torch.empty(2, 64 * BLOCK, device=device)
    for row in out:
        draws[(64,)](row, 7, BLOCK=BLOCK)
    assert torch.equal(out[0], out[1])
    assert abs(float(out[0].mean()) - 0.5) < 0.02
    assert 0 <= float(out.min()) < float(out.max()) < 1


@triton.jit
def functions(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets)
    tl.store(out + offsets, libdevice.tanh(values) + libdevice.erf(values))
    tl.store(out + BLOCK + offsets, tl.sqrt(tl.abs(values)) + tl.sin(values) * tl.log2(tl.abs(values) + 1))


def test_mathematics(device: torch.device) -> None:
    x = numbers(device, BLOCK)
    out = torch.empty(2, BLOCK, device=device)
    functions[(1,)](x, out, BLOCK=BLOCK)
    here = x.cpu()
    expected = [here.tanh() + here.erf(), here.abs().sqrt() + here.sin() * (here.abs() + 1).log2()]
    close(out, torch.stack(expected), rtol=1e-5, atol=1e-5)


@triton.jit
def block_pointers(x, out, ROWS, COLUMNS, TILE: tl.constexpr):
    source = tl.make_block_ptr(x, (ROWS, COLUMNS), (COLUMNS, 1), (0, 0), (TILE, TILE), (1, 0))
    source = tl.advance(source, (0, TILE))
    target = tl.make_block_ptr(out, (TILE, TILE), (TILE, 1), (0, 0), (TILE, TILE), (1, 0))
    tl.store(target, tl.load(source, boundary_check=(0, 1), padding_option="zero"))


@pytest.mark.skipif(not has_block_pointers(), reason="this Triton has descriptors in place of block pointers")
def test_block_pointers(device: torch.device) -> None:
    x = numbers(device, 20, 40)
    out = torch.empty(32, 32, device=device)
    block_pointers[(1,)](x, out, 20, 40, TILE=32)
    expected = torch.zeros(32, 32)
    expected[:20, :8] = x.cpu()[:, 32:]
    assert torch.equal(out.cpu(), expected)


@triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 256)], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def tuned_double(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + offsets, tl.load(x + offsets) * 2)
    else:
        tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) * 2, mask=offsets < n)


@pytest.mark.parametrize("n", [1000, 1024])
def test_autotuning_and_heuristics(device: torch.device, n: int) -> None:
    x = numbers(device, n)
    out = torch.empty_like(x)
    tuned_double[lambda arguments: (triton.cdiv(n, arguments["BLOCK"]),)](x, out, n)
    close(out, x.cpu() * 2)


def test_launches_follow_the_stream(device: torch.device) -> None:
    stream = torch.Stream(device)
    x = torch.zeros(N, device=device)
    torch.accelerator.synchronize()
    with stream:
        for _ in range(10):
            masked_add[(triton.cdiv(N, BLOCK),)](x, x + 1, x, N, BLOCK=BLOCK)
    stream.synchronize()
    assert x.unique().tolist() == [2.0**10 - 1]
