"""Bank conflicts in shared memory are those of the addresses that the compiled code computes, and unknown otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from torch_mtia.portability.banks import SharedAccess, shared_accesses
from torch_mtia.triton import targets

UNKNOWN, DIVERGES = "the address depends on data", "lanes of a warp take different branches"


def ways(*instructions: str, threads: int = 32) -> int | str:
    """Of the one access in a kernel of these instructions."""
    text = [".visible .entry kernel()", "{", "mov.u32 %r1, %tid.x;", "mov.b32 %r2, global_smem;", *instructions, "}"]
    (found,) = shared_accesses([("file.py", 1, line) for line in text], threads)
    return found.why if found.ways is None else found.ways


@pytest.mark.parametrize(
    ("stride", "access", "expected"),
    [
        (4, "st.shared.b32 [%r4], %r9;", 1),
        (8, "st.shared.b32 [%r4], %r9;", 2),
        (128, "st.shared.b32 [ %r4 + 16 ], %r9;", 32),
        (132, "st.shared.b32 [%r4], %r9;", 1),
        (0, "ld.shared.b32 %r9, [%r4];", 1),  # one word for all
        (2, "ld.shared.b16 %rs9, [%r4+2];", 1),
        (64, "ld.shared.b16 %rs9, [%r4];", 16),
        (1, "ld.shared.v4.b8 {%rs1, %rs2, %rs3, %rs4}, [%r4];", 1),
        # 16 lanes at a time, or 8 lanes
        (8, "ld.shared.v2.b32 {%r8, %r9}, [%r4];", 1),
        (16, "ld.shared.b64 %rd9, [%r4];", 2),
        (16, "st.shared.v4.b32 [%r4], {%r6, %r7, %r8, %r9};", 1),
        (128, "st.shared.v4.b32 [%r4], {%r6, %r7, %r8, %r9};", 8),
        # rows of matrices, by the first lanes
        (64, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r6, %r7, %r8, %r9}, [%r4+64];", 4),
        (144, "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r8, %r9}, [%r4];", 1),
    ],
)
def test_lanes_that_access_different_words_of_a_bank_conflict(stride: int, access: str, expected: int) -> None:
    assert ways(f"mad.lo.s32 %r4, %r1, {stride}, %r2;", access) == expected


def test_an_exclusive_or_with_the_row_avoids_conflicts() -> None:
    rows = ("shr.u32 %r3, %r1, 3;", "and.b32 %r5, %r1, 7;", "shl.b32 %r6, %r5, 7;")
    matrix = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r16, %r17, %r18, %r19}, [%r10];"
    plain = (*rows, "shl.b32 %r7, %r3, 4;", "or.b32 %r8, %r6, %r7;", "add.s32 %r10, %r2, %r8;", matrix)
    swizzled = (*plain[:3], "xor.b32 %r4, %r3, %r5;", "shl.b32 %r7, %r4, 4;", *plain[4:])
    assert (ways(*plain), ways(*swizzled)) == (8, 1)


def test_what_a_warp_shares_changes_nothing() -> None:
    assert ways("ld.param.b32 %r3, [kernel_param_0];", "mad.lo.s32 %r4, %r1, 8, %r3;", "st.shared.b32 [%r4], %r9;") == 2
    loop = ("shl.b32 %r4, %r1, 3;", "add.s32 %r5, %r4, %r2;", "$L__BB0_1:", "st.shared.b32 [%r5], %r9;",
            "add.s32 %r5, %r5, 512;", "@%p1 bra $L__BB0_1;", "ld.param.b32 %r3, [kernel_param_0];",
            "setp.lt.s32 %p1, %r3, 3;")  # fmt: skip
    assert ways(*loop) == 2
    # Bytes that may begin within a word.
    moved = ("ld.param.b32 %r3, [kernel_param_0];", "mad.lo.s32 %r4, %r1, 2, %r3;")
    assert ways(*moved, "st.shared.b8 [%r4], %r9;") == 1
    assert ways(*moved[:1], "mad.lo.s32 %r4, %r1, 66, %r3;", "st.shared.b16 [%r4], %rs9;") == UNKNOWN


def test_lanes_that_take_no_part_conflict_with_none() -> None:
    store = "@%p1 st.shared.b32 [%r4], %r9;"
    address = ("shl.b32 %r3, %r1, 7;", "add.s32 %r4, %r3, %r2;")
    assert ways(*address, "setp.lt.u32 %p1, %r1, 4;", store) == 4
    both = ("ld.param.b32 %r5, [kernel_param_0];", "setp.lt.u32 %p2, %r1, 4;", "setp.lt.s32 %p3, %r5, 9;")
    assert ways(*address, *both, "and.pred %p1, %p2, %p3;", store) == 4
    assert ways(*address, "setp.lt.u32 %p1, %r1, 64;", store, threads=128) == 32


@pytest.mark.parametrize(
    ("instructions", "why"),
    [
        (("ld.global.b32 %r3, [%rd1];", "ld.shared.b32 %r9, [%r3];"), UNKNOWN),
        (("shl.b32 %r3, %r1, 2;", "ld.shared.b32 %r4, [%r3];", "ld.shared.b32 %r9, [%r4];"), UNKNOWN),
        (("setp.lt.u32 %p1, %r1, 4;", "@%p1 bra $L__BB0_1;", "st.shared.b32 [%r2], %r9;"), DIVERGES),
        (("cp.async.cg.shared.global [ %r2 + 0 ], [ %rd1 + 0 ], 0x10, %r9;",), "written by cp.async"),
        (("atom.shared.add.u32 %r9, [%r2], 1;",), "atomic"),
    ],
)
def test_what_is_not_known_is_not_guessed(instructions: tuple[str, ...], why: str) -> None:
    assert ways(*instructions) == why


# Compiled kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def column_sums(x, z, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(z + tl.arange(0, N), tl.sum(tl.load(x + i * N + j), 0))


@triton.jit
def product(a, b, c, M: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
    tl.store(c + i * M + j, tl.dot(tl.load(a + i * M + j), tl.load(b + i * M + j)))


@triton.jit
def take(x, places, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(z + i, tl.gather(tl.load(x + i), tl.load(places + i), 0))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path_factory.mktemp("cache"))
        yield Path(knobs.cache.dir)


def test_the_report_says_which_conflicts_there_are_and_which_are_not_known() -> None:
    x, z = torch.ones(64, 128).to("mtia"), torch.empty(64, 128, device="mtia")
    half = x.half()
    places = torch.randint(0, 1024, (1024,)).to("mtia")
    with targets("cuda:80", "hip:gfx942") as report:
        column_sums[(1,)](x, z, M=64, N=128)
        product[(1,)](half, half, z, M=64)
        take[(1,)](x, places, z, BLOCK=1024)
    sums, _, dot, _, gather, amd = report.rows
    assert sums.code is not None
    assert dot.code is not None
    assert gather.code is not None
    assert amd.code is not None
    assert [each.ways for each in dot.code.shared_accesses] == [1] * len(dot.code.shared_accesses) != []
    worst = max((each for each in sums.code.shared_accesses if each.kind == "store"), key=lambda each: each.ways or 0)
    assert f"store in shared memory with {worst.ways}-way bank conflicts" in str(report)
    assert SharedAccess(gather.file, gather.line + 2, "load", None, UNKNOWN) in gather.code.shared_accesses
    assert f"not known of line {gather.line + 2}, {UNKNOWN}" in str(report)
    assert amd.code.shared_accesses == ()
    assert "bank conflicts: none in " in report.to_html()
