"""Matrix products in the tiles of AMX: run as they are where the processor has them, and else by an emulator of these
instructions (tests/cpp/tile_emulator.cpp), among code that the processor has."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton_language import tensors_on_mtia  # noqa: F401

from torch_mtia.triton import machine
from torch_mtia.triton.architecture import usable

LEVEL = "x86-64-v4-amx"


@triton.jit
def product_kernel(x, y, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, columns: tl.constexpr):
    """`columns`: whether the operands lie by columns in memory."""
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    x += m + k[None, :] * M if columns else m * K + k[None, :]
    y += k[:, None] + n * K if columns else k[:, None] * N + n
    tl.store(z + m * N + n, tl.dot(tl.load(x), tl.load(y), out_dtype=z.dtype.element_ty))


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        x = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m * N + n, total, mask=(m < M) & (n < N))


def assembly(operand: torch.dtype, result: torch.dtype, level: str, **shape: int) -> str:
    compiled = product_kernel.warmup(operand, operand, result, columns=False, arch=level, grid=(1,), **shape)
    return str(compiled.asm["asm"])


BF16, INT8 = (torch.bfloat16, torch.float32), (torch.int8, torch.int32)


@pytest.mark.parametrize(
    ("dtypes", "level", "instruction"),
    [
        ((torch.float32, torch.float32), "x86-64", "mulps\t%xmm"),
        ((torch.float32, torch.float32), "x86-64-v3", "vfmadd231ps\t%ymm"),
        ((torch.float32, torch.float32), "x86-64-v4", "vfmadd231ps\t%zmm"),
        ((torch.float64, torch.float64), "x86-64-v4", "vfmadd231pd\t%zmm"),
        (INT8, "x86-64", "pmaddwd\t%xmm"),
        (INT8, "x86-64-v3", "vpmaddwd\t%ymm"),
        (INT8, "x86-64-v4", "vpmaddwd\t%zmm"),
        (INT8, "x86-64-v4-vnni", "vpdpbusd\t%zmm"),
        (INT8, LEVEL, "tdpbssd\t%tmm"),
        (BF16, "x86-64-v4-vnni", "vfmadd231ps\t%zmm"),
        (BF16, "x86-64-v4-bf16", "vdpbf16ps\t%zmm"),
        (BF16, LEVEL, "tdpbf16ps\t%tmm"),
    ],
)
def test_each_level_multiplies_with_its_widest_instruction(
    dtypes: tuple[torch.dtype, torch.dtype], level: str, instruction: str
) -> None:
    assert instruction in assembly(*dtypes, level, M=64, N=64, K=64)


def test_tiles_are_configured_once_for_all_programs_and_released() -> None:
    entry = assembly(*BF16, LEVEL, M=32, N=32, K=32).partition("mtia_entry:")[2]
    order = [entry.index(word) for word in ("ldtilecfg", "callq", "tilerelease", "retq")]
    assert order == sorted(order)
    assert entry.count("ldtilecfg") == 1


@pytest.mark.unwatched("looks at the code of kernels")
@pytest.mark.parametrize("shape", [(8, 32, 64), (32, 8, 64), (32, 32, 16)])
def test_products_smaller_than_a_tile_do_without(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    assert "tmm" not in (text := assembly(*BF16, LEVEL, M=m, N=n, K=k))
    assert "tile" not in text


@pytest.fixture
def executed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], bool]]:
    """Makes kernels with tiles run; says whether instructions with tiles were executed, as far as it can tell."""
    if LEVEL in usable():
        yield lambda: True
        return
    # The code around the tiles is for the highest level whose instructions are there.
    around = next((each for each in ("x86-64-v4-bf16", "x86-64-v3", "x86-64") if each in usable()), None)
    if around is None:
        pytest.skip("tiles are instructions of x86")
    library = tmp_path_factory.getbasetemp() / "tile_emulator.so"
    if not library.exists():
        source = Path(__file__).parent / "cpp" / "tile_emulator.cpp"
        subprocess.run(["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", str(library), str(source)], check=True)
    emulator = ctypes.CDLL(str(library))
    emulator.tile_emulator_executed.restype = ctypes.c_int64
    # The driver refuses images that say that they need AMX. None of those without that is kept.
    level = machine.LEVELS[around]
    extensions = ",".join(filter(None, (level.extensions, "+amx-tile,+amx-bf16,+amx-int8")))
    features = level.features | {"vnni", "bf16", "amx"}
    monkeypatch.setitem(machine.LEVELS, LEVEL, dataclasses.replace(level, features=features, extensions=extensions))
    machine._target_machine.cache_clear()
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    for kernel in (product_kernel, matmul_kernel):
        kernel.device_caches.clear()
    before = emulator.tile_emulator_executed()
    emulator.tile_emulator_begin()
    yield lambda: emulator.tile_emulator_executed() > before
    torch.mtia.synchronize()
    emulator.tile_emulator_end()
    machine._target_machine.cache_clear()
    for kernel in (product_kernel, matmul_kernel):
        kernel.device_caches.clear()


SHAPES = [(16, 16, 64), (16, 64, 64), (64, 16, 512), (32, 128, 128), (128, 64, 2048)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.usefixtures("tensors_on_mtia")
def test_products(executed: Callable[[], bool], dtype: torch.dtype, shape: tuple[int, int, int], columns: bool) -> None:
    m, n, k = shape
    bound = 128 if dtype == torch.int8 else 4
    x, y = torch.randint(-bound, bound, (m, k)), torch.randint(-bound, bound, (k, n))
    z = torch.zeros(m, n, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
    given = [(operand.t() if columns else operand).to(dtype).contiguous() for operand in (x, y)]
    product_kernel[(1,)](*given, z, M=m, N=n, K=k, columns=columns, arch=LEVEL)
    assert torch.equal(z.double(), x.double() @ y.double())
    assert executed()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("tensors_on_mtia")
def test_many_programs_with_masks(executed: Callable[[], bool], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b, c = torch.randint(-4, 5, (150, 90)), torch.randint(-4, 5, (90, 200)), torch.zeros(150, 200)
    grid = (triton.cdiv(150, 32), triton.cdiv(200, 64))
    for _ in range(3):
        matmul_kernel[grid](a.bfloat16(), b.bfloat16(), c, 150, 200, 90, BM=32, BN=64, BK=64, arch=LEVEL)
        assert torch.equal(c, a.float() @ b.float())
    assert executed()
    torch.set_num_threads(before)
