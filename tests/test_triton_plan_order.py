"""The plans of kernels in which the order of things matters: loops, branches, stores, what is written over.

Pinned as those of test_triton_plan.py are.
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from expecttest import TestCase
from triton_language import plan_of

pytestmark = pytest.mark.unwatched("kernels that are watched have other plans")

F32 = torch.float32


@triton.jit
def gather_in_a_loop(out, x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    for _ in range(3):
        values = tl.gather(values, (i + 1) % BLOCK, 0)
    tl.store(out + i, values)


@triton.jit
def exchange_in_a_loop(out, x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    one, other = tl.load(x + i), tl.load(y + i)
    for _ in range(n):
        one, other = other, one
    tl.store(out + i, one)


@triton.jit
def histogram(out, x, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, 16), tl.histogram(tl.load(x + tl.arange(0, BLOCK)), 16))


@triton.jit
def atomic(out, x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(out + i % 4, tl.load(x + i))


@triton.jit
def while_loop(out, x, limit, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    while tl.sum(values, 0) < limit:
        values = values * 2
    tl.store(out + i, values)


@triton.jit
def branch(out, x, flag, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    if flag > 0:
        values = tl.exp(values)
    tl.store(out + i, values)


@triton.jit
def early_return(out, x, n, BLOCK: tl.constexpr):
    if tl.program_id(0) >= n:
        return
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))


@triton.jit
def aliasing_pointers(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(y + i) + 1)


@triton.jit
def two_stores(x, y, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(z + i)
    tl.store(x + i, values + 1)
    tl.store(y + i, values - 1)


@triton.jit
def load_behind_a_store(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.store(y + i, values * 2)
    tl.store(x + i, values + tl.load(y + i))


@triton.jit
def joined(out, x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    both = tl.interleave(tl.load(x + i), tl.load(y + i))
    tl.store(out + tl.arange(0, 2 * BLOCK), both)


@triton.jit
def assertion(x, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    tl.device_assert(values > 0, "positive")


@triton.jit
def scattered(x, out, a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i * a * b * c, tl.load(x + i))


def test_a_condition_never_computes_with_numbers_of_more_than_64_bits() -> None:
    """A product of three arguments may have more; where one of two does not fit in 32 bits, nothing is known."""
    plan = plan_of(scattered, torch.float32, torch.float32, 7, 9, 11, N=64)
    assert "and fits32(smax(0, %a * 63))" in plan
    assert "and fits32(smax(smin(0, %a * 63) * %b, smax(0, %a * 63) * %b))" in plan


@pytest.mark.skipif(not triton.__version__.startswith("3.7"), reason="other versions write other TTIR")
class TestPlansInOrder(TestCase):
    maxDiff = None

    def test_a_gather_does_not_write_over_what_it_reads(self) -> None:
        self.assertExpectedInline(
            plan_of(gather_in_a_loop, F32, F32, BLOCK=64),
            """\
kernel gather_in_a_loop(%out: ptr, %x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 22 ns for each program

#1: 64 x f32 on the stack, steps 4 to 8
#2: 64 x f32 on the stack, steps 6 to 7

  1 %0 = 1
  2 %1 = 3
  3 %2 = 0
  4 evaluate %values_1 -> #1
      over 64, 16 at a time, 2 strips in a round
      loads %values_1: vector, prefetches 2048 bytes ahead
  5 for %_ from %2 to %1 by %0
      carries %values_5 in #1, from %values_1, then %values_6
    do
  6     %values_6 = tt.gather %values_5, %values_3 with #1, #2
          over 64, 16 at a time, 2 strips in a round
          accesses #1: gather
  7     evaluate %values_6 -> #1
          over 64, 16 at a time, 2 strips in a round
          reads %values_6 from #2
  8 store %values_4 to %6
      over 64, 16 at a time, 2 strips in a round
      stores %values_4: vector
      reads %values_4 from #1
  9 return
""",
        )

    def test_exchanged_tensors_go_through_copies(self) -> None:
        self.assertExpectedInline(
            plan_of(exchange_in_a_loop, F32, F32, F32, 100, BLOCK=64),
            """\
kernel exchange_in_a_loop(%out: ptr, %x: ptr, %y: ptr, %n: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 79 ns for each program

#1: 64 x f32 on the stack, steps 3 to 6
#2: 64 x f32 on the stack, steps 3 to 5

  1 %0 = 1
  2 %1 = 0
  3 evaluate %4 -> #1, %7 -> #2
      over 64, 16 at a time, 2 strips in a round
      loads %4: vector, prefetches 2048 bytes ahead
      loads %7: vector, prefetches 2048 bytes ahead
  4 for %_ from %1 to %n by %0
      carries %one in #1, from %4, then %other_0
      carries %other_0 in #2, from %7, then %one
    do
  5     evaluate %other_0 -> #1, %one -> #2
          over 64, 16 at a time, 2 strips in a round
          reads %other_0 from #2
          reads %one from #1
  6 store %other#0 to %9
      over 64, 16 at a time, 2 strips in a round
      stores %other#0: vector
      reads %other#0 from #1
  7 return
""",
        )

    def test_histogram(self) -> None:
        self.assertExpectedInline(
            plan_of(histogram, torch.int32, torch.int32, BLOCK=64),
            """\
kernel histogram(%out: ptr, %x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 53 ns for each program

#1: 64 x i32 on the stack, steps 1 to 2
#2: 16 x i32 on the stack, steps 2 to 3

  1 evaluate %6 -> #1
      over 64, 16 at a time, 2 strips in a round
      loads %6: vector, prefetches 2048 bytes ahead
  2 %7 = tt.histogram %6 with #1, #2
      over 16, 16 at a time
      over 64, one by one
  3 store %7 to %2
      over 16, 16 at a time
      stores %7: vector
      reads %7 from #2
  4 return
""",
        )

    def test_atomic(self) -> None:
        self.assertExpectedInline(
            plan_of(atomic, F32, F32, BLOCK=64),
            """\
kernel atomic(%out: ptr, %x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 325 ns for each program

#1: 64 x f32 on the stack, steps 1 to 2

  1 evaluate %7 -> #1
      over 64, 16 at a time, 2 strips in a round
      loads %7: vector, prefetches 2048 bytes ahead
  2 add %7 to %4, 1 neighbours at once
      over 64, 16 at a time, 2 strips in a round
      adds %7: scatter
      reads %7 from #1
  3 return
""",
        )

    def test_while(self) -> None:
        self.assertExpectedInline(
            plan_of(while_loop, F32, F32, 100, BLOCK=64),
            """\
kernel while_loop(%out: ptr, %x: ptr, %limit: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 218 ns for each program

#1: 64 x f32 on the stack, steps 2 to 7
#2: 64 x f32 on the stack, steps 6 to 8

  1 %1 = arith.sitofp %limit
  2 evaluate %values_1 -> #1
      over 64, 16 at a time, 2 strips in a round
      loads %values_1: vector, prefetches 2048 bytes ahead
  3 while
      carries %values_5 in #1, from %values_1, then %values_4
    check
  4     reduce %values_5 along dimension 0 to %4
          over 64, 16 at a time
          reads %values_5 from #1
          in any order, 2 accumulators of 16 lanes
  5     %5 = arith.cmpf olt %4, %1
  6     evaluate %values_5 -> #2
          over 64, 16 at a time, 2 strips in a round
          reads %values_5 from #1
    do, if %5
  7     evaluate %values_4 -> #1
          over 64, 16 at a time, 2 strips in a round
          reads %values_3 from #2
  8 store %values_2 to %3
      over 64, 16 at a time, 2 strips in a round
      stores %values_2: vector
      reads %values_2 from #2
  9 return
""",
        )

    def test_if(self) -> None:
        self.assertExpectedInline(
            plan_of(branch, F32, F32, 100, BLOCK=64),
            """\
kernel branch(%out: ptr, %x: ptr, %flag: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 25 ns for each program

#1: 64 x f32 on the stack, steps 3 to 6
#2: 64 x f32 on the stack, steps 4 to 7

  1 %0 = 0
  2 %1 = arith.cmpi sgt %flag, %0
  3 evaluate %values_1 -> #1
      over 64, 16 at a time, 2 strips in a round
      loads %values_1: vector, prefetches 2048 bytes ahead
  4 if %1, for %2 -> #2
    then
  5     evaluate %values_2 -> #2
          over 64, 16 at a time, 2 strips in a round
          reads %values_1 from #1
    else
  6     evaluate %values_1 -> #2
          over 64, 16 at a time, 2 strips in a round
          reads %values_1 from #1
  7 store %2 to %4
      over 64, 16 at a time, 2 strips in a round
      stores %2: vector
      reads %2 from #2
  8 return
""",
        )

    def test_early_return(self) -> None:
        self.assertExpectedInline(
            plan_of(early_return, F32, F32, 100, BLOCK=64),
            """\
kernel early_return(%out: ptr, %x: ptr, %n: i32)
strips of 16 lanes, 0 bytes of scratch memory
about 4 ns for each program

#1: 64 x f32 on the stack, steps 1 to 9

  1 %0 = tt.get_program_id x
  2 %1 = arith.cmpi sge %0, %n
  3 if %1
    then
  4     go to ^1()
    else
  5     go to ^2()
    ^1():
  6 return
    ^2():
  7 store %6 to %3
      over 64, 16 at a time, 2 strips in a round
      loads %6: vector, prefetches 2048 bytes ahead
      stores %6: vector
      unstaged if (%x == %out) or (((%x + 256) <= %out) or ((%out + 256) <= %x))
      otherwise by way of #1
  8     store #1 to %3
          over 64, 16 at a time, 2 strips in a round
          stores %6: vector
  9 return
""",
        )

    def test_a_store_asks_whether_pointers_alias(self) -> None:
        self.assertExpectedInline(
            plan_of(aliasing_pointers, F32, F32, BLOCK=1024),
            """\
kernel aliasing_pointers(%x: ptr, %y: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 64 ns for each program

#1: 1024 x f32 on the stack, steps 1 to 2

  1 store %6 to %2
      over 1024, 16 at a time, 2 strips in a round
      loads %5: vector, prefetches 2048 bytes ahead
      stores %6: vector, past the caches
      unstaged if (%y == %x) or (((%y + 4096) <= %x) or ((%x + 4096) <= %y))
      past the caches if 4096 <= programs
        and not(%y == %x)
      otherwise by way of #1
  2     store #1 to %2
          over 1024, 16 at a time, 2 strips in a round
          stores %6: vector
  3 return
""",
        )

    def test_two_stores_share_a_nest(self) -> None:
        self.assertExpectedInline(
            plan_of(two_stores, F32, F32, F32, BLOCK=64),
            """\
kernel two_stores(%x: ptr, %y: ptr, %z: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 6 ns for each program

#1: 64 x f32 on the stack, steps 1 to 2
#2: 64 x f32 on the stack, steps 1 to 3

  1 store %3 to %2, %6 to %5
      over 64, 16 at a time, 2 strips in a round
      loads %values_1: vector, prefetches 2048 bytes ahead
      stores %3: vector
      stores %6: vector
      unstaged if (%z == %x) or (((%z + 256) <= %x) or ((%x + 256) <= %z))
        and (%z == %y) or (((%z + 256) <= %y) or ((%y + 256) <= %z))
        and (%x == %y) or (((%x + 256) <= %y) or ((%y + 256) <= %x))
      otherwise by way of #1, #2
  2     store #1 to %2
          over 64, 16 at a time, 2 strips in a round
          stores %3: vector
  3     store #2 to %5
          over 64, 16 at a time, 2 strips in a round
          stores %6: vector
  4 return
""",
        )

    def test_a_load_is_done_before_a_store_that_may_change_it(self) -> None:
        self.assertExpectedInline(
            plan_of(load_behind_a_store, F32, F32, BLOCK=64),
            """\
kernel load_behind_a_store(%x: ptr, %y: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 12 ns for each program

#1: 64 x f32 on the stack, steps 1 to 3
#2: 64 x f32 on the stack, steps 3 to 4

  1 evaluate %values_1 -> #1
      over 64, 16 at a time, 2 strips in a round
      loads %values_1: vector, prefetches 2048 bytes ahead
  2 store %3 to %2
      over 64, 16 at a time, 2 strips in a round
      stores %3: vector
      reads %values_1 from #1
  3 store %5 to %values_0
      over 64, 16 at a time, 2 strips in a round
      loads %4: vector, prefetches 2048 bytes ahead
      stores %5: vector
      reads %values_1 from #1
      unstaged if (%y == %x) or (((%y + 256) <= %x) or ((%x + 256) <= %y))
      otherwise by way of #2
  4     store #2 to %values_0
          over 64, 16 at a time, 2 strips in a round
          stores %5: vector
  5 return
""",
        )

    def test_interleave(self) -> None:
        self.assertExpectedInline(
            plan_of(joined, F32, F32, F32, BLOCK=64),
            """\
kernel joined(%out: ptr, %x: ptr, %y: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 12 ns for each program

#1: 128 x f32 on the stack, steps 1 to 3

  1 evaluate %both_1 -> #1
      over 64, 16 at a time, 2 strips in a round
      loads %both_1: vector, prefetches 2048 bytes ahead
      accesses #1: strided
  2 evaluate %both_4 -> #1+4
      over 64, 16 at a time, 2 strips in a round
      loads %both_4: vector, prefetches 2048 bytes ahead
      accesses #1+4: strided
  3 store %both_5 to %2
      over 128, 16 at a time, 2 strips in a round
      stores %both_5: vector, past the caches
      reads %both_5 from #1
      past the caches if 32768 <= programs
  4 return
""",
        )

    def test_assertion(self) -> None:
        self.assertExpectedInline(
            plan_of(assertion, F32, BLOCK=64, debug=True),
            """\
kernel assertion(%x: ptr)
strips of 16 lanes, 0 bytes of scratch memory
about 4 ns for each program

  1 tt.assert %1
      over 64, 16 at a time, 2 strips in a round
      loads %values_2: vector, prefetches 2048 bytes ahead
  2 return
""",
        )
