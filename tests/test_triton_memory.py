"""Loads and stores: masks, gathers, scatters, broadcasts, views, and the order of accesses that may overlap."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl
from triton_language import tensors_on_mtia, with_source  # noqa: F401

from torch_mtia.torch_version import has_block_pointers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")


@pytest.mark.parametrize("n", [1, 2, 5, 15, 16, 17, 31, 100, 127, 128])
def test_masks_and_other(n: int) -> None:
    @triton.jit
    def kernel(x, z, n, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(z + i, tl.load(x + i, mask=i < n, other=-7.0), mask=i % 3 != 1)

    x, z = torch.randn(n), torch.full((128,), 99.0)
    kernel[(1,)](x, z, n, N=128)
    expected = torch.full((128,), -7.0)
    expected[:n] = x
    expected[torch.arange(128) % 3 == 1] = 99.0
    assert torch.equal(z, expected)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float64, torch.bool]
)
def test_every_element_size(dtype: torch.dtype) -> None:
    @triton.jit
    def kernel(x, z, n, N: tl.constexpr):
        i = tl.program_id(0) * N + tl.arange(0, N)
        tl.store(z + n - 1 - i, tl.load(x + i, mask=i < n), mask=i < n)

    x = torch.randint(0, 2 if dtype == torch.bool else 100, (77,)).to(dtype)
    z = torch.zeros_like(x)
    kernel[(5,)](x, z, 77, N=16)
    assert torch.equal(z, x.flip(0))


def test_gather_and_scatter() -> None:
    @triton.jit
    def kernel(x, index, z, N: tl.constexpr):
        i = tl.arange(0, N)
        j = tl.load(index + i)
        tl.store(z + j, tl.load(x + N - 1 - j))

    x, index = torch.randn(64), torch.randperm(64)
    z = torch.zeros(64)
    kernel[(1,)](x, index, z, N=64)
    expected = torch.zeros(64)
    expected[index] = x[63 - index]
    assert torch.equal(z, expected)


@pytest.mark.parametrize("shape", [(1, 1), (2, 64), (64, 2), (16, 16), (32, 8), (1, 128), (128, 1)])
def test_two_dimensional_tiles_and_strides(shape: tuple[int, int]) -> None:
    @triton.jit
    def kernel(x, z, sx0, sx1, sz0, sz1, M: tl.constexpr, N: tl.constexpr):
        r, c = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
        tl.store(z + r * sz0 + c * sz1, tl.load(x + r * sx0 + c * sx1) + r * 100 + c)

    x = torch.randn(shape)
    expected = x + torch.arange(shape[0])[:, None] * 100 + torch.arange(shape[1])
    for source in (x, x.t().contiguous().t()):
        for z in (torch.zeros(shape), torch.zeros(shape[::-1]).t()):
            kernel[(1,)](source, z, *source.stride(), *z.stride(), M=shape[0], N=shape[1])
            assert torch.allclose(z, expected)


def test_index_arithmetic_with_division_and_remainder() -> None:
    @triton.jit
    def kernel(x, z, n, A, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(z + i, tl.load(x + (i % A) * 3 + (i // A) * 5, mask=i < n), mask=i < n)

    for columns in (64, 48, 7, 1, 16):
        x, z = torch.randn(20000), torch.zeros(1000)
        kernel[(8,)](x, z, 1000, columns, B=128)
        i = torch.arange(1000)
        assert torch.equal(z, x[(i % columns) * 3 + (i // columns) * 5])


def test_pointers_in_memory() -> None:
    @triton.jit
    def kernel(table, z, N: tl.constexpr):
        i = tl.arange(0, N)
        pointer = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
        tl.store(z + tl.program_id(0) * N + i, tl.load(pointer + i))

    rows = [torch.randn(32) for _ in range(4)]
    table = torch.tensor([row.data_ptr() for row in rows])
    z = torch.zeros(4, 32)
    kernel[(4,)](table, z, N=32)
    assert torch.equal(z, torch.stack(rows))


def test_pointers_to_constants() -> None:
    @triton.jit
    def kernel(x: tl.const, table: tl.const, z, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(z + i, tl.load(x + i) + tl.load(x + tl.load(table + i)) + tl.load(x))

    x, table, z = torch.randn(32), torch.randperm(32), torch.zeros(32)
    kernel[(1,)](x, table, z, N=32)
    assert torch.equal(z, x + x[table] + x[0])


# Order ----------------------------------------------------------------------------------------------------------------


@triton.jit
def shift_kernel(x, z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(z + i, tl.load(x + i) + 1)


@pytest.mark.parametrize("shift", [-17, -1, 0, 1, 3, 16, 40])
def test_a_program_reads_all_before_it_writes(shift: int) -> None:
    memory = torch.arange(300.0)
    expected = memory.clone()
    expected[60 + shift : 60 + shift + 128] = memory[60:188] + 1
    shift_kernel[(1,)](memory[60:], memory[60 + shift :], N=128)
    assert torch.equal(memory, expected)


def test_a_load_sees_stores_before_and_none_behind() -> None:
    @triton.jit
    def kernel(x, y, z, N: tl.constexpr):
        i = tl.arange(0, N)
        first = tl.load(x + i)
        tl.store(y + i, first * 2)
        second = tl.load(x + i)
        tl.store(x + N - 1 - i, second + 1)
        third = tl.load(y + i)
        tl.store(z + i, first * 10000 + second * 100 + third)

    x = torch.arange(1.0, 33.0)
    memory, z = x.clone(), torch.zeros(32)
    kernel[(1,)](memory, memory, z, N=32)
    second = x * 2
    third = (second + 1).flip(0)
    assert torch.equal(z, x * 10000 + second * 100 + third)
    assert torch.equal(memory, third)


def test_indices_are_read_before_they_are_overwritten() -> None:
    @triton.jit
    def kernel(index, N: tl.constexpr):
        i = tl.arange(0, N)
        j = tl.load(index + i)
        tl.store(index + j, i)

    permutation = torch.randperm(64)
    memory = permutation.clone()
    kernel[(1,)](memory, N=64)
    assert torch.equal(memory, permutation.argsort())


def test_stores_in_a_loop_are_seen_by_the_next_round() -> None:
    @triton.jit
    def kernel(x, rounds, N: tl.constexpr):
        i = tl.arange(0, N)
        before = tl.load(x + i)
        for _ in range(rounds):
            v = tl.load(x + i)
            w = tl.load(x + (i + 1) % N)
            tl.store(x + i, v + w)
        tl.store(x + N + i, before)

    memory = torch.cat([torch.arange(16), torch.zeros(16, dtype=torch.int64)])
    expected = torch.arange(16)
    for _ in range(5):
        expected = expected + expected.roll(-1)
    kernel[(1,)](memory, 5, N=16)
    assert torch.equal(memory[:16], expected)
    assert torch.equal(memory[16:], torch.arange(16))


def test_stores_under_a_condition() -> None:
    @triton.jit
    def kernel(x, z, flag, N: tl.constexpr):
        i = tl.arange(0, N)
        v = tl.load(x + i)
        if flag > 0:
            tl.store(x + i, v + 1)
            v = tl.load(x + i) * 10
        tl.store(z + i, v + tl.load(x + i))

    for flag in (0, 1):
        x, z = torch.arange(32.0), torch.zeros(32)
        kernel[(1,)](x, z, flag, N=32)
        old = torch.arange(32.0)
        assert torch.equal(z, (old + 1) * 11 if flag else old * 2)


# Descriptors and block pointers ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not has_block_pointers(), reason="this Triton has descriptors in place of block pointers")
def test_block_pointers() -> None:
    @triton.jit
    def kernel(x, z, M, N, BM: tl.constexpr, BN: tl.constexpr):
        source = tl.make_block_ptr(x, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
        total = tl.zeros((BM, BN), tl.float32)
        for _ in range(0, N, BN):
            total += tl.load(source, boundary_check=(0, 1), padding_option="zero")
            source = tl.advance(source, (0, BN))
        target = tl.make_block_ptr(z, (M, BN), (BN, 1), (0, 0), (BM, BN), (1, 0))
        tl.store(target, total, boundary_check=(0,))

    x, z = torch.randn(10, 40), torch.zeros(10, 16)
    kernel[(1,)](x, z, 10, 40, BM=16, BN=16)
    padded = torch.cat([x, torch.zeros(10, 8)], 1)
    assert torch.allclose(z, padded.view(10, 3, 16).sum(1))


def test_descriptors_made_in_the_kernel() -> None:
    @triton.jit
    def kernel(x, z, M, N, BM: tl.constexpr, BN: tl.constexpr):
        source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
        target = tl.make_tensor_descriptor(z, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
        for column in range(0, N, BN):
            target.store([tl.program_id(0) * BM, column], source.load([tl.program_id(0) * BM, column]) * 2)

    x = torch.randn(20, 36)
    z = torch.zeros_like(x)
    kernel[(3,)](x, z, 20, 36, BM=8, BN=16)
    assert torch.equal(z, x * 2)


def test_descriptors_made_on_the_host() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def kernel(source, target, BM: tl.constexpr, BN: tl.constexpr):
        row = tl.program_id(0) * BM
        target.store([row, 0], source.load([row, 0]) + 1)

    x = torch.randn(20, 16)
    z = torch.zeros_like(x)
    kernel[(3,)](TensorDescriptor.from_tensor(x, [8, 16]), TensorDescriptor.from_tensor(z, [8, 16]), BM=8, BN=16)
    assert torch.equal(z, x + 1)


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_descriptors_of_the_host_beside_other_arguments(padding: str, rounds: bool, rank: int) -> None:
    """Rows that lie apart, blocks beyond the ends, and numbers that are rounded to TF32 as they are loaded."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def kernel(addend, source, z, target, n, RANK: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK
        at = [i] if RANK == 1 else [0, i] if RANK == 2 else [0, 0, i]
        numbers = source.load(at)
        target.store(at, numbers + addend)
        flat = tl.reshape(numbers, numbers.numel)
        tl.store(z + tl.program_id(0) * flat.numel + tl.arange(0, flat.numel), flat, mask=tl.arange(0, flat.numel) < n)

    whole = torch.randn(*(8, 4)[2 - rank + 1 :], 48) if rank > 1 else torch.randn(48)
    x, target = whole[..., :20], torch.zeros_like(whole)[..., :20]
    block = [*(8, 4)[2 - rank + 1 :], 16] if rank > 1 else [16]
    size = torch.Size(block).numel()
    descriptor = TensorDescriptor(x, list(x.shape), list(x.stride()), block, padding, round_f32_to_tf32=rounds)
    z = torch.zeros(2 * size)
    targets = TensorDescriptor.from_tensor(target, block)
    compiled = kernel[(2,)](0.5, descriptor, z, targets, 2 * size, RANK=rank, BLOCK=16)
    assert " if %" not in compiled.asm["plan"]  # which would have loops and buffers of its own

    expected = x.cpu()
    if rounds:
        bits = expected.contiguous().view(torch.int32)
        expected = ((bits + 4095 + (bits >> 13 & 1)) & -8192).view(torch.float32)
    assert torch.equal(target.cpu(), expected + 0.5)
    padded = torch.nn.functional.pad(expected, (0, 12), value=float("nan") if padding == "nan" else 0.0)
    blocks = torch.stack([part.flatten() for part in padded.split(16, -1)]).flatten()
    assert torch.equal(z.cpu().nan_to_num(7), blocks.nan_to_num(7))


@triton.jit
def shifted_kernel(x, z, size, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, i < size, other=0) + 1, i < size)


@pytest.mark.parametrize("shift", [-300, -17, -1, 0, 1, 17, 300, 2048])
def test_a_store_does_not_disturb_what_it_has_still_to_read(shift: int) -> None:
    """The program finds out by itself how its two arguments overlap."""
    memory = torch.arange(4096, dtype=torch.int32)
    expected = memory.clone()
    expected[1024 + shift : 2000 + shift] = memory[1024:2000] + 1
    shifted_kernel[(1,)](memory[1024:], memory[1024 + shift :], 976, BLOCK=1024)
    assert torch.equal(memory, expected)


@triton.jit
def one_lane_kernel(x, z, LANE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(z + i, value.to(z.dtype.element_ty), mask=i == LANE)


@pytest.mark.parametrize(
    ("wide", "narrow"), [(torch.int16, torch.int8), (torch.int32, torch.int8), (torch.int64, torch.int32)]
)
@pytest.mark.parametrize("lane", [0, 5])
def test_a_narrowed_store_of_one_lane_leaves_its_neighbours(wide: torch.dtype, narrow: torch.dtype, lane: int) -> None:
    x = torch.arange(1000, 1016, dtype=wide)
    z = torch.zeros(16, dtype=narrow)
    expected = z.clone()
    expected[lane] = x[lane].to(narrow)
    one_lane_kernel[(1,)](x, z, LANE=lane, N=16)
    assert torch.equal(z, expected)


@triton.jit
def wrapped_store_kernel(x, start, distance, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(x + ((i + start) * 65536) * 65536 + i + distance, value + 1)  # 2**32 is nothing


@pytest.mark.parametrize("distance", [0, 1, 3, 8, 63, 64, 100])
def test_indices_that_wrap_may_overlap_with_what_is_read(distance: int) -> None:
    x = torch.arange(256, dtype=torch.int32)
    expected = x.clone()
    expected[distance : distance + 64] = x[:64] + 1
    wrapped_store_kernel[(1,)](x, 1, distance, N=64)
    assert torch.equal(x, expected)


@triton.jit
def momentum_kernel(x, average, x_out, average_out, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + i)
    new = tl.load(average + i) * 0.9 + value
    tl.store(average_out + i, new)
    tl.store(x_out + i, value - new)


@pytest.mark.parametrize("x_in_place", [True, False])
@pytest.mark.parametrize("average_in_place", [True, False])
def test_updates_of_more_than_caches_hold(x_in_place: bool, average_in_place: bool) -> None:
    """Stores pass by the caches, but for those over what was read just now."""
    x, average = torch.randn(1 << 20), torch.randn(1 << 20)
    expected = average * 0.9 + x
    x_out = x if x_in_place else torch.empty_like(x)
    average_out = average if average_in_place else torch.empty_like(average)
    expected_x = x - expected
    momentum_kernel[(1024,)](x, average, x_out, average_out, N=1024)
    torch.testing.assert_close(average_out, expected)
    torch.testing.assert_close(x_out, expected_x)


# Stores that share a nest ---------------------------------------------------------------------------------------------


@triton.jit
def two_stores_kernel(x, y, first, second, kept, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(first + i, a + b)
    tl.store(second + i, a - b, mask=i < kept)
    tl.store(second + N + i, tl.exp(a) * b)


@pytest.mark.parametrize("kept", [256, 100])
@pytest.mark.parametrize(
    ("first_at", "second_at"), [(0, 256), (512, 0), (17, 300), (1100, 1101), (1101, 1100), (300, 17)]
)
def test_stores_that_may_overlap_what_others_read_and_write(first_at: int, second_at: int, kept: int) -> None:
    memory = torch.randn(2048)
    x, y = memory[:256].clone(), memory[256:512].clone()
    expected = memory.clone()
    expected[first_at : first_at + 256] = x + y
    expected[second_at : second_at + kept] = (x - y)[:kept]
    expected[second_at + 256 : second_at + 512] = torch.exp(x) * y
    two_stores_kernel[(1,)](memory, memory[256:], memory[first_at:], memory[second_at:], kept, N=256)
    torch.testing.assert_close(memory, expected)


@pytest.mark.unwatched("looks at the code of kernels")
def test_stores_share_what_they_read_and_compute() -> None:
    tensors = [torch.randn(512) for _ in range(4)]
    compiled = two_stores_kernel[(1,)](*tensors, 200, N=256)
    reads = compiled.asm["llir"].count("= load <")
    assert reads == 2 + 3 * 2, "of two operands, and, two strips in a round, of three buffers for pointers that overlap"


def test_indices_are_read_before_a_block_behind_a_return_overwrites_them() -> None:
    @triton.jit
    def kernel(rows, x, stop, M: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr):
        i = tl.arange(0, M)
        pointers = x + tl.load(rows + i)[:, None] * COLUMNS + tl.arange(0, N)[None, :]
        if tl.load(stop) == 1:
            return
        tl.store(rows + i, tl.zeros([M], tl.int32))
        tl.store(pointers, tl.full([M, N], 1, tl.int32))

    for stop in (0, 1):
        rows = torch.randperm(16, dtype=torch.int32)
        x = torch.zeros(16, 32, dtype=torch.int32)
        kernel[(1,)](rows, x, torch.tensor([stop]), M=16, N=16, COLUMNS=32)
        assert x[:, :16].eq(1 - stop).all()
        assert rows.any() == bool(stop)


@pytest.mark.unwatched("looks at the code of kernels")
@pytest.mark.parametrize("value", ["tl.load(x, volatile=VOLATILE)", "tl.sum(tl.load(x + i, volatile=VOLATILE), 0)"])
def test_volatile_loads_read_each_time_and_once(value: str) -> None:
    """What another program writes meanwhile is seen, and all uses of one load see the same."""

    @triton.jit
    def twice(x, z, N: tl.constexpr):
        i = tl.arange(0, N)  # noqa: F841
        tl.store(z, EXPRESSION - EXPRESSION)  # type: ignore[name-defined]  # noqa: F821

    @triton.jit
    def used_twice(x, z, N: tl.constexpr):
        i = tl.arange(0, N)
        loaded = tl.load(x + i, volatile=VOLATILE)  # type: ignore[name-defined]  # noqa: F821
        tl.store(z, tl.sum(loaded, 0) - tl.max(loaded, 0))

    def loads(kernel: Any, volatile: bool) -> int:
        x = torch.zeros(4)
        compiled = with_source(kernel, EXPRESSION=value, VOLATILE=str(volatile))[(1,)](x, x, N=4)
        body = compiled.asm["llir"].partition("@program(")[2].partition("\n}")[0]
        return len(re.findall(r"= load (?:float|<4 x float>), ptr %v\d+, align 4", body))

    assert loads(twice, volatile=True) == 2
    assert loads(twice, volatile=False) == 1
    assert loads(used_twice, volatile=True) == 1


def test_a_store_over_a_load_at_quotients_by_several_numbers() -> None:
    @triton.jit
    def kernel(x):
        i = tl.arange(0, 256)
        tl.store(x + i, tl.load(x + (2000 + i) // (1 + i)) + 1)

    x = torch.arange(4096, dtype=torch.int32)
    i = torch.arange(256)
    expected = x.clone()
    expected[:256] = x[(2000 + i) // (1 + i)] + 1
    kernel[(1,)](x)
    assert torch.equal(x, expected)


def test_an_address_made_of_indices_that_may_wrap_apart() -> None:
    @triton.jit
    def kernel(x, z, left, right):
        i = tl.arange(0, 64)
        distance = (i + left).to(tl.int64) - (i + right).to(tl.int64)
        tl.store(z + i, tl.load(x + distance // 3 + i))
        tl.store(z + 64 + i, tl.load(x + i * 0, mask=distance < 8, other=-1))

    x, z = torch.arange(256, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    kernel[(1,)](x, z, 17, 10)
    assert z.tolist() == [*range(2, 66), *[0] * 64]


def test_a_store_over_a_load_whose_stride_wrapped_below_zero() -> None:
    @triton.jit
    def kernel(x):
        i = tl.arange(0, 64)
        stride = tl.program_id(0) * 1431655765  # of program 3: -1
        if tl.program_id(0) == 3:
            tl.store(x + 36 + i, tl.load(x + 100 + i * stride))

    x = torch.arange(256, dtype=torch.int32)
    expected = x.clone()
    expected[36:100] = x[37:101].flip(0)
    kernel[(4,)](x)
    assert torch.equal(x, expected)


@triton.jit
def _products(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.exp2(tl.load(x + i)).to(tl.int32)
    b = a * 77777
    high = tl.umulhi(a, b)
    low = a * b
    tl.store(out + i, high + low)
    tl.store(out + N + i, tl.load(out + N + i) + high - low)


def test_both_results_of_one_operation_are_kept(tmp_path: Path) -> None:
    x = torch.rand(64) * 30
    one_by_one, together = torch.zeros(2, 128, dtype=torch.int32)
    ttir = _products[(1,)](one_by_one, x, N=64).asm["ttir"]
    ttir = re.sub(r"(%high\w*) = tt.mulhiui", r"%both, \1 = arith.mului_extended", ttir)
    ttir = re.sub(r"%low\b", "%both", re.sub(r" *%low = arith.muli.*\n", "", ttir))
    file = tmp_path / "products.ttir"
    file.write_text(ttir)
    plan = _products[(1,)](together, x, N=64, ir_override=str(file)).asm["plan"]
    assert plan.count("keeps") == 2
    assert torch.equal(one_by_one, together)


def test_what_is_fetched_ahead_is_not_looked_up_behind_the_end_of_a_buffer() -> None:
    @triton.jit
    def kernel(z, x, order, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        rows = tl.arange(0, ROWS) * 3
        tl.store(z + tl.arange(0, ROWS), tl.gather(rows, tl.load(order + tl.arange(0, ROWS)), 0))
        places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        tl.store(z + ROWS + places, tl.load(x + rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]))

    x = torch.arange(3 * 64 * 16, dtype=torch.int32)
    order = torch.randperm(64)
    z = torch.zeros(64 + 64 * 16, dtype=torch.int32)
    compiled = kernel[(1,)](z, x, order, ROWS=64, COLUMNS=16)
    assert torch.equal(z, torch.cat([order.int() * 3, x.view(64, 3, 16)[:, 0].flatten()]))
    assert re.search(r"loads %\d+: vector\n +stores .*\n +reads %rows\w* from", compiled.asm["plan"])
    assert compiled.asm["llir"].count("call void @llvm.prefetch") == 2  # of `order`, two strips in a round
