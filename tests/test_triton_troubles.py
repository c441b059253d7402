"""Kernels that run on mtia and are in trouble on a GPU: the report names each trouble, and the program's results are
those without a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.compiler.errors import CompilationError
from triton.tools.tensor_descriptor import TensorDescriptor

from torch_mtia.portability import strict, workers
from torch_mtia.portability.lines import described
from torch_mtia.portability.rows import COMPILES, DOES_NOT_FIT, FAILS, Row
from torch_mtia.triton import targets

A100, RTX_3090, H100, MI300 = "cuda:80", "cuda:86", "cuda:90", "hip:gfx942"
TARGETS = (A100, RTX_3090, H100, MI300)
SIZE = 1 << 16


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr = "tf32"):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left, right = tl.load(a + i[:, None] * K + k), tl.load(b + k[:, None] * N + j)
    tl.store(c + i[:, None] * N + j, tl.dot(left, right, input_precision=PRECISION))


@triton.jit
def double(x, z, n, step, BLOCK: tl.constexpr, STRIDE: tl.constexpr = 1):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x + i * STRIDE * step, i < n)
    tl.store(z + i, 2 * numbers, i < n)


@triton.jit
def take(x, places, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + tl.load(places + i)))


@triton.jit
def to_float8(x, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i).to(tl.float8e4nv).to(tl.float32))


@triton.jit
def copy_described(source, z, M: tl.constexpr, N: tl.constexpr):
    tl.store(z + tl.arange(0, M)[:, None] * N + tl.arange(0, N), source.load([0, 0]))


@triton.jit
def add_by_assembly(x, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    numbers = tl.load(x + i)
    if tl.target_info.is_cuda() or tl.target_info.is_hip():
        numbers = tl.inline_asm_elementwise("add.f32 $0, $1, 1.0;", "=f,f", [numbers], tl.float32, True, 1)
    else:
        numbers += 1
    tl.store(z + i, numbers)


class Trouble(NamedTuple):
    name: str
    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    target: str
    status: str
    says: str  # in the lines of the row
    is_refused: bool = True  # by the strict check
    grid: tuple[int, ...] = (1,)


def numbers(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(SIZE) % 5).to(dtype).to("mtia")


x, z, half, byte = numbers(), torch.zeros(SIZE).to("mtia"), numbers(torch.float16), numbers(torch.int8)
integers = torch.zeros(SIZE, dtype=torch.int32).to("mtia")
places = torch.randperm(512).to("mtia")
matrix = TensorDescriptor.from_tensor(x.view(256, 256), [32, 32])

TROUBLES = (
    Trouble("operands that shared memory does not hold", product, (half, half, z),
            {"M": 128, "N": 128, "K": 256}, RTX_3090, DOES_NOT_FIT, "out of resource: shared memory"),
    Trouble("an inner dimension below 16", product, (half, half, z),
            {"M": 32, "N": 32, "K": 8}, H100, FAILS, "K >= 16"),
    Trouble("an inner dimension of bytes below 32", product, (byte, byte, integers),
            {"M": 32, "N": 32, "K": 16}, H100, FAILS, "K >= 32"),
    Trouble("a product without tensor cores", product, (x, x, z),
            {"M": 32, "N": 32, "K": 32, "PRECISION": "ieee"}, H100, COMPILES, "none, and there is a tl.dot"),
    Trouble("registers that spill", product, (half, half, z),
            {"M": 128, "N": 128, "K": 16, "num_warps": 1}, A100, COMPILES, "bytes spilled"),
    Trouble("a limit of registers that spills", product, (half, half, z),
            {"M": 64, "N": 64, "K": 64, "maxnreg": 32}, A100, COMPILES, "bytes spilled"),
    Trouble("a stride of three", double, (x, z, 1024, 1), {"BLOCK": 1024, "STRIDE": 3}, H100, COMPILES,
            "load of 32 bits, no two in a row by a warp: neighbouring elements are 12 bytes apart", False),
    Trouble("a stride that is an argument", double, (x, z, 1024, 2), {"BLOCK": 1024}, H100, COMPILES,
            "load of 32 bits: no two elements are known to be neighbours in memory", False),
    Trouble("indices", take, (x, places, z), {"BLOCK": 512}, H100, COMPILES,
            "no two elements are known to be neighbours in memory", False),
    Trouble("a mask that is no multiple of 16", double, (x, z, 1001, 1), {"BLOCK": 1024}, H100, COMPILES,
            "128 bits if n (in the mask) were divisible by 16", False),
    Trouble("an address that is no multiple of 16", double, (x[1:], z, 1024, 1), {"BLOCK": 1024}, MI300, COMPILES,
            "128 bits if x were divisible by 16", False),
    Trouble("blocks that are too small", double, (x, z, 64, 1), {"BLOCK": 64}, H100, COMPILES,
            "a thread has 1 of the elements, of 4 bytes", False),
    Trouble("three warps", double, (x, z, 96, 1), {"BLOCK": 128, "num_warps": 3}, H100, FAILS, "power of 2"),
    Trouble("64 warps", double, (x, z, 2048, 1), {"BLOCK": 2048, "num_warps": 64}, H100, DOES_NOT_FIT,
            "out of resource: warps, Required: 64, Hardware limit: 32"),
    Trouble("more waves than AMD's chips have", double, (x, z, 4096, 1), {"BLOCK": 4096, "num_warps": 32}, MI300,
            DOES_NOT_FIT, "out of resource: warps, Required: 32, Hardware limit: 16"),
    Trouble("a grid of too many rows", double, (x, z, 256, 1), {"BLOCK": 256}, H100, DOES_NOT_FIT,
            "1x65536x1, and there are at most 65,535 programs in y and z", grid=(1, 65536)),
    Trouble("an option of another vendor", double, (x, z, 512, 1), {"BLOCK": 512, "matrix_instr_nonkdim": 16}, H100,
            FAILS, "Keyword argument matrix_instr_nonkdim was specified but unrecognised"),
    Trouble("programs of several multiprocessors", double, (x, z, 256, 1), {"BLOCK": 256, "num_ctas": 2}, A100,
            FAILS, "num_ctas"),
    Trouble("a type that is newer than the chip", to_float8, (x, z), {"BLOCK": 256}, A100, FAILS, "fp8e4nv"),
    Trouble("assembly of the other vendor", add_by_assembly, (x, z), {"BLOCK": 256}, MI300, FAILS,
            "constraint 'f'"),
    Trouble("a descriptor of the host", copy_described, (matrix, z), {"M": 32, "N": 32}, H100, COMPILES,
            "load of tiles (TMA)", False),
    Trouble("a descriptor of the host where there is none", copy_described, (matrix, z),
            {"M": 32, "N": 32, "num_warps": 2}, A100, COMPILES,
            "no two elements are known to be neighbours in memory", False),
)  # fmt: skip


def launch(trouble: Trouble) -> list[torch.Tensor]:
    z.zero_()
    integers.zero_()
    trouble.kernel[trouble.grid](*trouble.arguments, **trouble.options)
    return [z.cpu(), integers.cpu()]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Row]]:
    """By the names of the troubles."""
    found: dict[str, Row] = {}
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path_factory.mktemp("cache"))
        before = {each.name: launch(each) for each in TROUBLES}
        for target in TARGETS:
            there = [each for each in TROUBLES if each.target == target]
            with targets(target) as report:
                for each in there:
                    assert all(map(torch.equal, before[each.name], launch(each)))
            found |= {each.name: row for each, row in zip(there, report.rows, strict=True)}
        yield found


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_a_trouble_is_named(rows: dict[str, Row], trouble: Trouble) -> None:
    row = rows[trouble.name]
    text = "\n".join(described(row))
    assert row.status == trouble.status, text
    assert trouble.says in text
    assert bool(strict.failures([row])) == trouble.is_refused


@triton.jit
def only_for_nvidia(x, z, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    numbers = tl.inline_asm_elementwise("add.f32 $0, $1, 1.0;", "=f,f", [tl.load(x + i)], tl.float32, True, 1)
    tl.store(z + i, numbers)


@pytest.mark.in_tree("Triton's target is called mtia under any name")
def test_a_kernel_that_mtia_does_not_compile_is_named() -> None:
    with targets(H100) as report, pytest.raises(CompilationError, match="inline"):
        only_for_nvidia[(1,)](x, z, BLOCK=64)
    assert report.rows == []
    line = only_for_nvidia.starting_line_number + 3
    (remark,) = report.remarks
    assert remark.startswith("not launched: mtia does not compile ")
    assert f"test_triton_troubles.py:{line}: " in remark
    assert remark in str(report)
    assert remark in json.loads(report.to_json())["remarks"]


def test_a_triton_without_a_back_end_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(f"""
import runpy
from triton.backends import backends
del backends["amd"]
runpy.run_path({str(workers._FILE)!r}, run_name="__main__")
""")
    monkeypatch.setattr(workers, "_FILE", tmp_path / "worker.py")
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    with targets(H100, MI300) as report:
        double[(1,)](x, z, 100, 1, BLOCK=128)
    assert [row.status for row in report.rows] == [COMPILES, FAILS]
    assert f"the installed Triton {triton.__version__} has no back end for hip" in report.rows[1].message


@triton.autotune([triton.Config({"N": n}, num_warps=4) for n in (16, 2048)], key=[])
@triton.jit
def tuned(a, c, N: tl.constexpr):
    i, k = tl.arange(0, 16), tl.arange(0, N)
    left = tl.load(a + i[:, None] * N + k)
    tl.store(c + i[:, None] * 16 + i, tl.dot(left, tl.trans(left)))


def test_all_configurations_of_an_autotuned_kernel_are_there_and_those_that_cannot_run_are_marked() -> None:
    a = torch.ones(16 * 2048).to("mtia")
    with targets(RTX_3090) as report:
        tuned[(1,)](a, z)
    assert [(row.constants["N"], row.status) for row in report.rows] == [(16, COMPILES), (2048, DOES_NOT_FIT)]
