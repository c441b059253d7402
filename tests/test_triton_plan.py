"""The plans that the Triton compiler makes, as text: which loops, along which dimensions, what is kept where.

They are pinned for a machine with AVX-512 and for the TTIR of one version of Triton. What has changed on purpose is
written anew by EXPECTTEST_ACCEPT=1.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from expecttest import TestCase
from triton_language import plan_of

pytestmark = pytest.mark.unwatched("kernels that are watched have other plans")

F32 = torch.float32


@triton.jit
def softmax(out, x, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    numbers = tl.load(x + row * stride + columns, mask=mask, other=-float("inf"))
    powers = tl.exp(numbers - tl.max(numbers, 0))
    tl.store(out + row * stride + columns, powers / tl.sum(powers, 0), mask=mask)


@triton.jit
def masked_max(out, x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out, tl.max(tl.load(x + i, mask=i < n, other=0.0), 0))


@triton.jit
def layer_norm(out, x, weight, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mask = i < n
    row = tl.load(x + tl.program_id(0) * n + i, mask=mask, other=0.0)
    mean = tl.sum(row, 0) / n
    centered = tl.where(mask, row - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centered * centered, 0) / n + 1e-5)
    tl.store(out + tl.program_id(0) * n + i, centered * scale * tl.load(weight + i, mask=mask), mask=mask)


@triton.jit
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK)
    at_a, at_b = a + rows[:, None] * K + inner[None, :], b + inner[:, None] * N + columns[None, :]
    total = tl.zeros((M, N), tl.float32)
    for _ in range(0, K, BLOCK):
        total = tl.dot(tl.load(at_a), tl.load(at_b), total)
        at_a += BLOCK
        at_b += BLOCK * N
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def halves(x, weight, out, K, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns, inner = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, BLOCK)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, K, BLOCK):
        both = tl.load(weight + (first + inner)[:, None] * N + columns)
        at = x + rows * K + 2 * first + inner[None, :]
        total = tl.dot(tl.load(at), (both & 15).to(tl.bfloat16), total)
        total = tl.dot(tl.load(at + BLOCK), (both >> 4).to(tl.bfloat16), total)
    tl.store(out + rows * N + columns, total)


@triton.jit
def transpose(out, x, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.load(x + j * N + i))


@triton.jit
def two_transposes(out, x, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.load(x + j * N + i))
    out += N * N
    tl.store(out + i * N + j, tl.load(x + j * N + i + N * N))


@triton.jit
def row_sums(out, x, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + tl.arange(0, M), tl.sum(tl.load(x + i * N + j), 1))


@triton.jit
def column_sums(out, x, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + tl.arange(0, N), tl.sum(tl.load(x + i * N + j), 0))


@triton.jit
def _first_negative(a, b):
    return tl.where(a < 0, a, b)


@triton.jit
def in_order(out, x, BLOCK: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, BLOCK)), 0, _first_negative))


@triton.jit
def scan(out, x, M: tl.constexpr, N: tl.constexpr):
    place = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + place, tl.cumsum(tl.load(x + place), 1, reverse=True))


@pytest.mark.skipif(not triton.__version__.startswith("3.7"), reason="other versions write other TTIR")
class TestPlans(TestCase):
    maxDiff = None

    def test_softmax(self) -> None:
        self.assertExpectedInline(
            plan_of(softmax, F32, F32, 100, 100, BLOCK=1024),
            """\
kernel softmax(%out: ptr, %x: ptr, %stride: i32, %n: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 631 ns for each program

#1: 1024 x f32 on the stack, steps 6 to 7

  1 %row = tt.get_program_id x
  2 %numbers_1 = arith.muli %row, %stride
  3 %numbers_2 = tt.addptr %x, %numbers_1
  4 reduce %numbers_5 along dimension 0 to %powers
      over 1024, 16 at a time
      loads %numbers_5: vector, prefetches 2048 bytes ahead
      in any order, 4 accumulators of 16 lanes
      ends before 1024 where %mask_0 is false, if the rest changes nothing
  5 %0 = tt.addptr %out, %numbers_1
  6 reduce %powers_8 along dimension 0 to %3
      over 1024, 16 at a time
      loads %numbers_5: vector, prefetches 2048 bytes ahead
      keeps %powers_8 in #1
      in any order, 4 accumulators of 16 lanes
      ends before 1024 where %mask_0 is false, if the rest changes nothing
  7 store %5 to %2
      over 1024, 16 at a time, 2 strips in a round
      divides to %5: reciprocal
      stores %5: vector, past the caches
      reads %powers_8 from #1
      ends along dimension 0 where %mask_0 is false
      past the caches if 4096 <= programs
        and not(%numbers_2 == %0)
  8 return
""",
        )

    def test_the_example_of_the_documentation(self) -> None:
        page = (Path(__file__).parent.parent / "docs" / "triton.md").read_text()
        assert plan_of(softmax, F32, F32, 100, 100, BLOCK=128) in page

    def test_a_masked_maximum_ends_where_its_mask_does(self) -> None:
        self.assertExpectedInline(
            plan_of(masked_max, F32, F32, 100, BLOCK=256),
            """\
kernel masked_max(%out: ptr, %x: ptr, %n: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 28 ns for each program

  1 reduce %5 along dimension 0 to %6
      over 256, 16 at a time
      loads %5: vector, prefetches 2048 bytes ahead
      in any order, 4 accumulators of 16 lanes
      ends before 256 where %2 is false, if the rest changes nothing
  2 tt.store %out, %6
  3 return
""",
        )

    def test_layer_norm(self) -> None:
        self.assertExpectedInline(
            plan_of(layer_norm, F32, F32, F32, 100, BLOCK=1024),
            """\
kernel layer_norm(%out: ptr, %x: ptr, %weight: ptr, %n: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 366 ns for each program

#1: 1024 x f32 on the stack, steps 15 to 16

  1 %scale = 1.0
  2 %0 = 9.99999974e-06
  3 %row = tt.get_program_id x
  4 %row_1 = arith.muli %row, %n
  5 %row_2 = tt.addptr %x, %row_1
  6 reduce %row_5 along dimension 0 to %mean
      over 1024, 16 at a time
      loads %row_5: vector, prefetches 2048 bytes ahead
      in any order, 4 accumulators of 16 lanes
      ends before 1024 where %mask_0 is false, if the rest changes nothing
  7 %mean_6 = arith.sitofp %n
  8 %mean_7 = arith.divf %mean, %mean_6
  9 reduce %scale_10 along dimension 0 to %scale_11
      over 1024, 16 at a time
      loads %row_5: vector, prefetches 2048 bytes ahead
      in any order, 4 accumulators of 16 lanes
      ends before 1024 where %mask_0 is false, if the rest changes nothing
 10 %scale_12 = arith.divf %scale_11, %mean_6
 11 %scale_13 = arith.addf %scale_12, %0
 12 %scale_14 = math.sqrt %scale_13
 13 %scale_15 = arith.divf %scale, %scale_14
 14 %2 = tt.addptr %out, %row_1
 15 store %10 to %4
      over 1024, 16 at a time, 2 strips in a round
      loads %row_5: vector, prefetches 2048 bytes ahead
      loads %9: vector, prefetches 2048 bytes ahead
      stores %10: vector, past the caches
      ends along dimension 0 where %mask_0 is false
      unstaged if (%row_2 == %2) or (((%row_2 + 4096) <= %2) or ((%2 + 4096) <= %row_2))
        and (%weight == %2) or (((%weight + 4096) <= %2) or ((%2 + 4096) <= %weight))
      past the caches if 4096 <= programs
        and not((%row_2 == %2) or (%weight == %2))
      otherwise by way of #1
 16     store #1 to %4
          over 1024, 16 at a time, 2 strips in a round
          stores %10: vector
          ends along dimension 0 where %mask_0 is false
 17 return
""",
        )

    def test_matmul(self) -> None:
        self.assertExpectedInline(
            plan_of(matmul, F32, F32, F32, 100, M=32, N=64, BLOCK=32),
            """\
kernel matmul(%a: ptr, %b: ptr, %c: ptr, %K: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 26280 ns for each program

#1: 2048 x f32 on the stack, steps 3 to 7
#2: 2048 x f32 on the stack, steps 5 to 6

  1 %0 = 32
  2 %1 = 0
  3 evaluate %total -> #1
      over 32 x 64, 16 at a time along dimension 1, 2 strips in a round
  4 for %_ from %1 to %K by %0
      carries %at_a advanced from %15 by %3, then %at_a_5
      carries %at_b advanced from %22 by %2, then %at_b_6
      carries %total_1 in #1, from %total, then %total_4
    do
  5     evaluate %total_3 -> #2
          over 32 x 64, 16 at a time along dimension 1, 2 strips in a round
          loads %total_3: vector, prefetches 8 rows ahead
          advances %at_b from %22
  6     multiply #1 += %total_2 @ #2
          32 x 32 @ 32 x 64, 32 products at a time, 4 in a round
          accumulators: 4 x 4 vectors of 16 lanes
          prefetches what follows %total_3, 32 rows ahead: 16 of 16 lines with each tile
          loads %total_2: strided, prefetches 4 rows ahead
          advances %at_a from %15
          advances %at_b from %22
  7 store %total_0#2 to %26
      over 32 x 64, 16 at a time along dimension 1, 2 strips in a round
      stores %total_0#2: vector
      reads %total_0#2 from #1
      outside of the innermost loop: %24
  8 return
""",
        )

    def test_weights_of_four_bits_are_looked_up_where_few_rows_are_multiplied(self) -> None:
        operands = torch.bfloat16, torch.uint8, F32, 128
        plan = plan_of(halves, *operands, arch="x86-64-v4-bf16", M=1, N=128, BLOCK=32)
        self.assertExpectedInline(
            plan,
            """\
kernel halves(%x: ptr, %weight: ptr, %out: ptr, %K: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 6810 ns for each program

#1: 128 x f32 on the stack, steps 4 to 9

  1 %0 = 32
  2 %1 = 0
  3 %5 = 2
  4 evaluate %total -> #1
      over 1 x 128, 16 at a time along dimension 1, 2 strips in a round
  5 for %first from %1 to %K by %0
      carries %total_2 in #1, from %total, then %total_23
    do
  6     %at_11 = arith.muli %first, %5
  7     %at_12 = tt.addptr %x, %at_11
  8     multiply #1 += %total_15 @ %total_17 + %total_20 @ %total_22
          1 x 16 @ 16 x 128, 16 products at a time, 1 in a round
          accumulators: 1 x 8 vectors of 16 lanes
          looks %total_17 up by bits 0 to 3 of %both_10
          looks %total_22 up by bits 4 to 7 of %both_10
          prefetches what follows %both_10, 32 rows ahead: 4 of 4 lines with each row, to level 2
          loads %total_15: strided
          loads %total_20: strided
          loads %both_10: vector
  9 store %total_1 to %11
      over 1 x 128, 16 at a time along dimension 1, 2 strips in a round
      stores %total_1: vector, past the caches
      reads %total_1 from #1
      past the caches if 32768 <= programs
 10 return
""",
        )

    def test_weights_of_four_bits_are_packed_together_for_more_rows(self) -> None:
        operands = torch.bfloat16, torch.uint8, F32, 128
        plan = plan_of(halves, *operands, arch="x86-64-v4-bf16", M=16, N=128, BLOCK=32)
        self.assertExpectedInline(
            plan,
            """\
kernel halves(%x: ptr, %weight: ptr, %out: ptr, %K: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 30124 ns for each program

#1: 2048 x f32 on the stack, steps 4 to 9
#2: 2048 x i32 on the stack, steps 7 to 8
#3: 2048 x i32 on the stack, steps 7 to 8

  1 %0 = 32
  2 %1 = 0
  3 %6 = 2
  4 evaluate %total -> #1
      over 16 x 128, 16 at a time along dimension 1, 2 strips in a round
  5 for %first from %1 to %K by %0
      carries %total_7 in #1, from %total, then %total_29
    do
  6     %at_16 = arith.muli %first, %6
  7     pack %total_23 -> #2, %total_28 -> #3, in words of bf16
          looks %total_23 up by bits 0 to 3 of %both_15
          looks %total_28 up by bits 4 to 7 of %both_15
          over 16 x 128, 16 at a time along dimension 1, 4 strips in a round
          loads %both_15: vector, prefetches 16 rows ahead
  8     multiply #1 += %total_21 @ #2 + %total_26 @ #3
          16 x 16 @ 16 x 128, 16 products at a time, 4 in a round
          accumulators: 4 x 4 vectors of 16 lanes
          loads %total_21: strided, prefetches 4 rows ahead
          loads %total_26: strided, prefetches 4 rows ahead
  9 store %total_6 to %18
      over 16 x 128, 16 at a time along dimension 1, 2 strips in a round
      stores %total_6: vector, past the caches
      reads %total_6 from #1
      outside of the innermost loop: %15
      past the caches if 2048 <= programs
 10 return
""",
        )

    def test_what_lies_along_another_dimension_is_transposed_in_registers(self) -> None:
        self.assertExpectedInline(
            plan_of(transpose, F32, F32, N=32),
            """\
kernel transpose(%out: ptr, %x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 144 ns for each program

#1: 1024 x f32 on the stack, steps 1 to 2

  1 evaluate %17 -> #1, in squares transposed in registers
      over 32 x 32, 16 at a time along dimension 0, written along 1
      loads %17: vector, prefetches 16 rows ahead
  2 store %17 to %10
      over 32 x 32, 16 at a time along dimension 1, 2 strips in a round
      stores %17: vector
      reads %17 from #1
      outside of the innermost loop: %7
  3 return
""",
        )

    def test_buffers_that_are_not_in_use_at_one_time_share_memory(self) -> None:
        self.assertExpectedInline(
            plan_of(two_transposes, F32, F32, N=128),
            """\
kernel two_transposes(%out: ptr, %x: ptr)
strips of 16 lanes, 65536 bytes of scratch memory
about 4608 ns for each program

#1: 16384 x f32 in scratch memory at 0, steps 2 to 3
#2: 16384 x f32 in scratch memory at 0, steps 5 to 6

  1 %1 = 16384
  2 evaluate %19 -> #1, in squares transposed in registers
      over 128 x 128, 16 at a time along dimension 0, written along 1
      loads %19: vector, prefetches 4 rows ahead
  3 store %19 to %12
      over 128 x 128, 16 at a time along dimension 1, 2 strips in a round
      stores %19: vector, past the caches
      reads %19 from #1
      outside of the innermost loop: %9
      past the caches if 256 <= programs
  4 %out_0 = tt.addptr %out, %1
  5 evaluate %25 -> #2, in squares transposed in registers
      over 128 x 128, 16 at a time along dimension 0, written along 1
      loads %25: vector, prefetches 4 rows ahead
  6 store %25 to %23
      over 128 x 128, 16 at a time along dimension 1, 2 strips in a round
      stores %25: vector, past the caches
      reads %25 from #2
      outside of the innermost loop: %21
      past the caches if 256 <= programs
  7 return
""",
        )

    def test_row_sums(self) -> None:
        self.assertExpectedInline(
            plan_of(row_sums, F32, F32, M=4, N=64),
            """\
kernel row_sums(%out: ptr, %x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 25 ns for each program

#1: 4 x f32 on the stack, steps 1 to 2

  1 reduce %13 along dimension 1 to %14 -> #1
      over 4 x 64, 16 at a time along dimension 1
      loads %13: vector, prefetches 8 rows ahead
      outside of the innermost loop: %9
      in any order, 2 accumulators of 16 lanes
  2 store %14 to %6
      over 4, 4 at a time
      stores %14: vector
      reads %14 from #1
  3 return
""",
        )

    def test_column_sums(self) -> None:
        self.assertExpectedInline(
            plan_of(column_sums, F32, F32, M=4, N=64),
            """\
kernel column_sums(%out: ptr, %x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 19 ns for each program

#1: 64 x f32 on the stack, steps 1 to 2

  1 reduce %13 along dimension 0 to %14 -> #1
      over 4 x 64, 16 at a time along dimension 1
      loads %13: vector, prefetches 8 rows ahead
      in any order, 4 strips side by side
  2 store %14 to %6
      over 64, 16 at a time, 2 strips in a round
      stores %14: vector
      reads %14 from #1
  3 return
""",
        )

    def test_a_function_that_is_not_commutative_keeps_the_order(self) -> None:
        self.assertExpectedInline(
            plan_of(in_order, F32, F32, BLOCK=256),
            """\
kernel in_order(%out: ptr, %x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 24 ns for each program

  1 %0 = 0.0
  2 reduce %4 along dimension 0 to %5
      over 256, 16 at a time
      loads %4: vector, prefetches 2048 bytes ahead
      in order of the indices, 8 strips at a time
  3 tt.store %out, %5
  4 return
""",
        )

    def test_scan(self) -> None:
        self.assertExpectedInline(
            plan_of(scan, F32, F32, M=4, N=64),
            """\
kernel scan(%out: ptr, %x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 440 ns for each program

#1: 256 x f32 on the stack, steps 1 to 2

  1 scan %4 along dimension 1, backward, to %5 -> #1
      over 4 x 64, 4 at a time along dimension 0
      loads %4: strided
  2 store %5 to %1
      over 4 x 64, 16 at a time along dimension 1, 2 strips in a round
      reads %5: strided
      stores %5: vector
      reads %5 from #1
      outside of the innermost loop: %place_2
  3 return
""",
        )


@triton.jit
def accesses(out, x, at, stride, n, N: tl.constexpr, kind: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    if kind == "neighbours":
        value = tl.load(x + i)
    elif kind == "wrapped neighbours":
        value = tl.load(x + i % n * 4 + i // n)
    elif kind == "folded":  # `n` is a multiple of 16
        value = tl.load(x + i % n + i // n * stride)
    elif kind == "at a distance":
        value = tl.load(x + i * stride)
    elif kind == "one for all":
        value = tl.load(x + i // (4 * N) * 0 + stride)
    else:
        value = tl.load(x + tl.load(at + i))
    tl.store(out + (tl.load(at + i) if kind == "written anywhere" else i), value)


@pytest.mark.parametrize(
    ("kind", "read", "written"),
    [
        ("neighbours", {"vector"}, "vector"),
        ("wrapped neighbours", {"strided"}, "vector"),
        ("folded", {"vector"}, "vector"),
        ("at a distance", {"strided"}, "vector"),
        ("one for all", {"scalar"}, "vector"),
        ("looked up", {"vector", "gather"}, "vector"),
        ("written anywhere", {"vector", "gather"}, "scatter"),
    ],
)
def test_a_plan_says_how_each_access_is_made(kind: str, read: set[str], written: str) -> None:
    plan = plan_of(accesses, F32, F32, torch.int32, 7, 160, N=64, kind=kind)
    assert set(re.findall(r"loads %\w+: (\w+)", plan)) == read
    assert set(re.findall(r"stores %\w+: (\w+)", plan)) == {written}


def test_a_softmax_and_a_matmul_have_no_gather() -> None:
    assert "gather" not in plan_of(softmax, F32, F32, 100, 100, BLOCK=1024)
    assert "gather" not in plan_of(matmul, F32, F32, F32, 100, M=32, N=64, BLOCK=32)


@triton.jit
def loaded_and_counted(index, out, sums, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    value = (tl.load(index + i)[:, None] + j[None, :]) // 3 // 5 // 7
    tl.store(out + i[:, None] * N + j, value + j)
    tl.store(sums + i, tl.sum(value * j, 1))


def test_numbers_made_of_loaded_ones_are_computed_once() -> None:
    plan = plan_of(loaded_and_counted, torch.int32, torch.int32, torch.int32, M=64, N=64)
    assert plan.count("loads") == 1
    assert re.search(r"keeps %value\w* in", plan)


def test_a_plan_is_the_same_every_time() -> None:
    texts = set()
    for _ in range(2):
        softmax.device_caches.clear()
        texts.add(plan_of(softmax, F32, F32, 100, 100, BLOCK=1024))
    assert len(texts) == 1
