"""Kernels that are launched on mtia are also compiled for GPUs, and a report says what they are there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from torch_mtia.portability import strict, transfer, workers
from torch_mtia.portability.assembly import spilled_bytes
from torch_mtia.portability.chips import CHIPS
from torch_mtia.portability.launches import Recording
from torch_mtia.portability.occupancy import occupancy
from torch_mtia.portability.report import Report
from torch_mtia.portability.rows import COMPILES, DOES_NOT_FIT, FAILS, Row
from torch_mtia.triton import targets

if TYPE_CHECKING:
    from tests.conftest import RunPython

FACTOR = tl.constexpr(3)
FILE = Path(__file__)
N, CUDA, HIP = 1000, "cuda:90", "hip:gfx942"


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(z + i, scaled(tl.load(x + i, mask=mask)) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def product(a, b, c, K, M: tl.constexpr, BK: tl.constexpr):
    i, k = tl.arange(0, M), tl.arange(0, BK)
    sums = tl.zeros((M, M), tl.float32)
    for first in range(0, K, BK):
        left = tl.load(a + i[:, None] * K + first + k)
        right = tl.load(b + (first + k)[:, None] * M + i)
        sums = tl.dot(left, right, sums)  # the line of the message
    tl.store(c + i[:, None] * M + i, sums)


@triton.jit
def never(x):
    tl.store(x, 0.0)


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(FILE.read_text().splitlines(), 1) if text in line)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path_factory.mktemp("cache"))
        yield Path(knobs.cache.dir)


@pytest.fixture(scope="module")
def vectors() -> list[torch.Tensor]:
    return [torch.randn(N).to("mtia") for _ in range(3)]


@pytest.fixture(scope="module")
def report(vectors: list[torch.Tensor]) -> Report:
    """Of launches of both kernels, one of which was launched before."""
    x, y, z = vectors
    a, b, c = (torch.randn(size, dtype=torch.float16).to("mtia") for size in ((64, 64), (64, 64), (64, 64)))
    add[(1,)](x, y, z, N, BLOCK=1024)
    never[(1,)](z)
    with targets(CUDA, HIP) as found:
        for _ in range(2):
            add[(1,)](x, y, z, N, BLOCK=1024)
        product[(1,)](a, b, c, 64, M=64, BK=32, num_stages=1)
        product[(1,)](a, b, c, 8, M=64, BK=8)
    torch.testing.assert_close(z.cpu(), 3 * x.cpu() + y.cpu())
    return found


def row_of(report: Report, kernel: str, target: str, **constants: int) -> Row:
    (row,) = (
        row
        for row in report.rows
        if row.kernel == kernel and row.target == target and constants.items() <= row.constants.items()
    )
    return row


def test_each_specialization_that_was_launched_has_a_row_for_each_target(report: Report) -> None:
    assert [(row.kernel, row.target, row.title) for row in report.rows] == [
        (kernel, target, title)
        for kernel, title in (
            ("add", "BLOCK=1024"),
            ("product", "M=64, BK=32, num_stages=1"),
            ("product", "M=64, BK=8"),
        )
        for target in (CUDA, HIP)
    ]


@pytest.mark.parametrize(("target", "binary"), [(CUDA, "cubin"), (HIP, "hsaco")])
def test_the_code_is_what_triton_compiles_for_the_gpu(report: Report, tmp_path: Path, target: str, binary: str) -> None:
    signature = {"x": "*fp32", "y": "*fp32", "z": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    pointer = [["tt.divisibility", 16], *([["tt.pointer_range", 32]] if target == HIP else [])]
    attributes = {(place,): pointer for place in range(3)} | {(3,): [], (4,): []}
    source = ASTSource(add, signature, {"BLOCK": 1024}, attributes)
    gpu = GPUTarget("cuda", 90, 32) if target == CUDA else GPUTarget("hip", "gfx942", 64)
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path)
        direct = triton.compile(source, target=gpu, options={"debug": False})
    row = row_of(report, "add", target)
    assert Path(row.files[binary]).read_bytes() == direct.asm[binary]
    assert row.code is not None
    assert row.code.shared == direct.metadata.shared
    if target == CUDA:
        shown = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", row.files["cubin"]], capture_output=True, text=True
        ).stdout
        assert f"REG:{row.code.registers} STACK:{row.code.stack} " in shown
    else:
        assert re.search(rf"\.vgpr_count:\s+{row.code.registers}\n", direct.asm["amdgcn"])
        waves = re.search(r"; Occupancy: (\d+)", direct.asm["amdgcn"])
        assert waves is not None
        assert row.occupancy is not None
        assert row.occupancy.warps == 4 * int(waves[1])


def test_what_a_kernel_needs_is_compared_with_what_a_multiprocessor_has(report: Report) -> None:
    row = row_of(report, "product", CUDA, BK=32)
    assert row.status == COMPILES
    assert row.code is not None
    assert row.code.matrix == ("wgmma.mma",)
    assert row.has_dot
    assert row.max_shared == 232448
    assert row_of(report, "product", HIP, BK=32).code.matrix == ("mfma",)  # type: ignore[union-attr]


def test_accesses_have_their_lines_and_widths(report: Report) -> None:
    line = line_of("scaled(tl.load(x")
    for target in (CUDA, HIP):
        code = row_of(report, "add", target).code
        assert code is not None
        assert [(each.line, each.kind, set(each.widths)) for each in code.accesses] == [
            (line, "load", {32}),
            (line, "store", {32}),
        ]
        loads = [each for each in row_of(report, "product", target, BK=32).code.accesses if each.kind == "load"]  # type: ignore[union-attr]
        assert {bits for each in loads for bits in each.widths} == {128}


def test_a_kernel_that_does_not_compile_has_the_compilers_message_and_the_line(report: Report) -> None:
    row = row_of(report, "product", CUDA, BK=8)
    assert row.status == FAILS
    assert "K >= 16" in row.message
    assert row.place == (str(FILE), line_of("# the line of the message"))
    assert row_of(report, "product", HIP, BK=8).status == COMPILES


def test_the_text_the_json_and_the_page_say_the_same(report: Report) -> None:
    text, page = str(report), report.to_html()
    records = json.loads(report.to_json())["rows"]
    assert len(records) == len(report.rows)
    for row, record in zip(report.rows, records, strict=True):
        assert row.title in text
        assert record["status"] == row.status
        if row.code is None:
            assert row.message in text
            assert record["message"] == row.message
        else:
            registers = f"{row.code.registers} registers"
            assert registers in text
            assert registers in page
            assert record["registers"] == row.code.registers
    assert "http" not in page
    assert "<script" not in page


def test_a_kernel_that_does_not_fit_says_so_in_tritons_words() -> None:
    a, b, c = (torch.zeros(512 * 512, dtype=torch.float16).to("mtia") for _ in range(3))
    with targets("cuda:86") as report:
        product[(1,)](a, b, c, 256, M=128, BK=256)
    (row,) = report.rows
    assert row.status == DOES_NOT_FIT
    assert row.code is not None
    assert f"shared memory, Required: {row.code.shared}, Hardware limit: 101376" in row.message
    assert strict.failures(report.rows) == [f"product({row.title}) on cuda:86: does not fit: {row.message}"]


def test_a_grid_that_no_gpu_launches_does_not_fit(vectors: list[torch.Tensor]) -> None:
    with targets(CUDA, HIP) as report:
        add[(1, 65536)](*vectors, N, BLOCK=1024)
    assert [row.status for row in report.rows] == [DOES_NOT_FIT, COMPILES]
    assert "1x65536x1" in report.rows[0].message


def test_the_options_of_a_launch_are_those_of_the_target(vectors: list[torch.Tensor]) -> None:
    with targets(CUDA, HIP) as report:
        add[(1,)](*vectors, N, BLOCK=512, num_warps=8, waves_per_eu=2)
    cuda, hip = report.rows
    assert cuda.message == "KeyError: 'Keyword argument waves_per_eu was specified but unrecognised'"
    assert hip.code is not None
    assert hip.code.warps == 8


def test_waves_per_eu_bounds_the_programs_of_amds_chips(vectors: list[torch.Tensor]) -> None:
    with targets(HIP) as report:
        add[(1,)](*vectors, N, BLOCK=512, waves_per_eu=2)
    (row,) = report.rows
    assert row.code is not None
    assert row.occupancy is not None
    # With 168 of 512 registers, three waves would be resident in each of four units.
    assert row.code.registers < 32
    assert row.code.allocated == 169
    assert (row.occupancy.programs, row.occupancy.warps) == (2, 8)
    assert f"{row.code.registers} registers ({row.code.allocated} allocated)" in str(report)


def test_every_option_of_a_gpus_launch_is_accepted_here() -> None:
    from triton.backends.amd.compiler import HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    from torch_mtia.triton.compiler import OPTION_NAMES

    assert set(CUDAOptions.__dataclass_fields__) | set(HIPOptions.__dataclass_fields__) <= OPTION_NAMES


@pytest.mark.parametrize("name", ["cuda", "cuda:9", "cuda:gfx942", "hip:90", "gfx942", ""])
def test_a_name_that_is_no_target_raises(name: str) -> None:
    with (
        pytest.raises(ValueError, match="is not a target; targets are cuda:CAPABILITY and hip:ARCHITECTURE"),
        targets(name),
    ):
        pass


def test_no_name_raises() -> None:
    with pytest.raises(ValueError, match="at least one name"), targets():
        pass


def test_a_target_that_triton_does_not_know_is_a_row(vectors: list[torch.Tensor]) -> None:
    with targets("cuda:11") as report:
        add[(1,)](*vectors, N, BLOCK=256)
    assert [row.status for row in report.rows] == [FAILS]
    assert "sm_11" in report.rows[0].message
    assert "the limits of cuda:11 are not known here" in str(report)


# Why accesses are narrow ----------------------------------------------------------------------------------------------


@triton.jit
def copies(x, y, z, n, m, step, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n)  # mask
    b = tl.load(y + i + m)  # offset
    c = tl.load(x + 3 * i)  # stride
    d = tl.load(x + i * step)  # argument
    tl.store(z + i, a + b + c + d)  # pointer


@pytest.fixture(scope="module")
def narrow() -> Report:
    x, y, z = (torch.zeros(8192).to("mtia") for _ in range(3))
    with targets(CUDA, "cuda:80") as found:
        copies[(1,)](x, y, z[1:], 1001, 5, 2, BLOCK=1024)
        copies[(1,)](x, y, z, 1008, 16, 2, BLOCK=128)
    return found


@pytest.mark.parametrize("target", [CUDA, "cuda:80"])
@pytest.mark.parametrize(
    ("line", "reason", "contiguous"),
    [
        ("# mask", "128 bits if n (in the mask) were divisible by 16", 512),
        ("# offset", "128 bits if m were divisible by 16", 512),
        ("# stride", "neighbouring elements are 12 bytes apart", 0),
        ("# argument", "no two elements are known to be neighbours in memory", None),
        ("# pointer", "128 bits if z were divisible by 16", 128),
    ],
)
def test_a_narrow_access_has_its_reason(
    narrow: Report, target: str, line: str, reason: str, contiguous: int | None
) -> None:
    row = row_of(narrow, "copies", target, BLOCK=1024)
    key = (str(FILE), line_of(line), "store" if line == "# pointer" else "load")
    assert row.reasons[key] == reason
    assert row.contiguous[key] == contiguous


def test_an_access_of_a_few_elements_is_narrow_because_a_thread_has_no_more(narrow: Report) -> None:
    row = row_of(narrow, "copies", CUDA, BLOCK=128)
    key = (str(FILE), line_of("# mask"), "load")
    assert row.reasons[key] == "a thread has 1 of the elements, of 4 bytes"
    assert f"line {key[1]}: load of 32 bits, 128 bytes in a row by a warp: {row.reasons[key]}" in str(narrow)


# Processes ------------------------------------------------------------------------------------------------------------


@triton.constexpr_function
def one_in_time(cuda):
    while cuda:
        pass
    return 1


@triton.jit
def endless(x):
    tl.store(x, one_in_time(tl.target_info.is_cuda()))


def test_a_compiler_that_does_not_end_is_a_row(vectors: list[torch.Tensor]) -> None:
    x = vectors[0].clone()
    with targets(CUDA, timeout=0.1) as report:
        endless[(1,)](x)
    assert [row.message for row in report.rows] == ["the compiler did not end within 0.1 seconds"]
    assert x[0].item() == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys; sys.exit('no room')", "the compiler's process died with status 1: no room"),
        ("import os; os.kill(os.getpid(), 9)", "the compiler's process died with status -9"),
    ],
)
def test_a_compiler_that_dies_is_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vectors: list[torch.Tensor], text: str, message: str
) -> None:
    (tmp_path / "worker.py").write_text(text)
    monkeypatch.setattr(workers, "_FILE", tmp_path / "worker.py")
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    with targets(CUDA) as report:
        add[(1,)](*vectors, N, BLOCK=1024)
    assert [(row.status, row.message) for row in report.rows] == [(FAILS, message)]


def test_a_kernel_arrives_with_what_it_refers_to(vectors: list[torch.Tensor]) -> None:
    shift = tl.constexpr(5)

    @triton.jit
    def inner(x, by: tl.constexpr = 2):
        return x + by

    @triton.jit
    def outer(x, function: tl.constexpr):
        tl.store(x, function(scaled(tl.load(x))) + shift)

    with targets(CUDA) as report:
        outer[(1,)](vectors[0].clone(), inner)
    (row,) = report.rows
    assert row.status == COMPILES, row.message
    assert row.title == "function=inner"
    assert ".f32 " in Path(row.files["ptx"]).read_text()


x = torch.ones(1).to("mtia")  # has the name of an argument, and is not sent


def test_variables_with_names_of_arguments_stay_here(vectors: list[torch.Tensor]) -> None:
    with targets(CUDA) as report:
        never[(1,)](vectors[0].clone())
    assert [row.status for row in report.rows] == [COMPILES]
    assert len(transfer.encode(report.rows[0].specialization.source)) < 20_000


def test_a_kernel_that_cannot_be_sent_is_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vectors: list[torch.Tensor]
) -> None:
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))

    def refuse(_: Any) -> bytes:
        raise transfer.Unsendable("TypeError: cannot pickle")

    monkeypatch.setattr(transfer, "encode", refuse)
    with targets(CUDA) as report:
        add[(1,)](*vectors, N, BLOCK=1024)
    assert [row.message for row in report.rows] == ["cannot be compiled in another process: TypeError: cannot pickle"]


def test_what_a_report_has_found_is_found_again_without_a_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vectors: list[torch.Tensor]
) -> None:
    def report() -> Report:
        with targets(CUDA, HIP) as found:
            add[(1,)](*vectors, N, BLOCK=1024)
        return found

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))
    first = report()
    (tmp_path / "worker.py").write_text("import sys; sys.exit('no process')")
    monkeypatch.setattr(workers, "_FILE", tmp_path / "worker.py")
    second = report()
    assert second.to_json() == first.to_json()
    assert str(second) == str(first)
    # But not for other targets, where the kernel was removed, or if Triton is to compile.
    with targets(CUDA, "cuda:80") as other:
        add[(1,)](*vectors, N, BLOCK=1024)
    assert [row.status for row in other.rows] == [FAILS, FAILS]
    with monkeypatch.context() as patch:
        patch.setattr(knobs.compilation, "always_compile", True)
        assert [row.status for row in report().rows] == [FAILS, FAILS]
    Path(first.rows[0].files["cubin"]).unlink()
    assert [row.status for row in report().rows] == [FAILS, FAILS]


def test_a_report_that_is_read_early_has_later_kernels_too(vectors: list[torch.Tensor]) -> None:
    with targets(CUDA) as report:
        add[(1,)](*vectors, N, BLOCK=1024)
        assert [row.kernel for row in report.rows] == ["add"]
        never[(1,)](vectors[2].clone())
    assert [row.kernel for row in report.rows] == ["add", "never"]


def test_launches_are_not_observed_outside_of_a_block(vectors: list[torch.Tensor]) -> None:
    outer, inner = Recording(), Recording()
    outer.start()
    inner.start()
    add[(1,)](*vectors, N, BLOCK=1024)
    inner.stop()
    never[(1,)](vectors[2])
    outer.stop()
    add[(1,)](*vectors, N, BLOCK=256)
    assert [each.source.fn for each in inner.specializations] == [add]
    assert [each.source.fn for each in outer.specializations] == [add, never]


# Occupancy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "expected"),
    [
        # 255 registers of 32 lanes are 8,192: two warps in each of four partitions.
        ("cuda:90", 255, 0, 4, (2, 8, ("registers",))),
        ("cuda:90", 255, 0, 16, (0, 0, ("registers",))),
        # 233,472 / (49,152 + 1,024)
        ("cuda:90", 64, 49152, 4, (4, 16, ("shared memory",))),
        ("cuda:90", 64, 232448, 4, (1, 4, ("shared memory",))),
        ("cuda:90", 64, 232449, 4, (0, 0, ("shared memory",))),
        ("cuda:90", 16, 0, 1, (32, 32, ("programs",))),
        ("cuda:86", 32, 0, 4, (12, 48, ("warps",))),
        ("cuda:80", 32, 0, 64, (0, 0, ("warps",))),
        # 72 registers: 7 waves in each of four units, in workgroups of 4.
        ("hip:gfx942", 72, 8192, 4, (7, 28, ("registers",))),
        ("hip:gfx942", 24, 16384, 4, (4, 16, ("shared memory",))),
        # 116 registers are 120; 1,536 / 120
        ("hip:gfx1100", 116, 0, 4, (12, 48, ("registers",))),
    ],
)
def test_occupancy(target: str, registers: int, shared: int, warps: int, expected: tuple[int, int, Any]) -> None:
    found = occupancy(CHIPS[target], target.startswith("cuda"), registers, shared, warps)
    assert (found.programs, found.warps, found.limits) == expected


def test_programs_wait_for_tensor_memory() -> None:
    found = occupancy(CHIPS["cuda:100"], True, 32, 1024, 4, columns=128)
    assert (found.programs, found.limits) == (4, ("tensor memory",))
    a = torch.zeros(128 * 128, dtype=torch.float16).to("mtia")
    with targets("cuda:100") as report:
        product[(1,)](a, a, a.float(), 64, M=128, BK=64)
    (row,) = report.rows
    assert row.code is not None
    assert row.code.matrix == ("tcgen05.mma",)
    assert row.occupancy is not None
    assert row.occupancy.programs <= 4  # 128 columns of 512


def test_spilled_bytes_are_those_of_stores_to_local_memory() -> None:
    sass = "STL.64 [R1+0x8], R2 ;\n@P0 STL [R1], R3 ;\nSTL.128 [R1+0x10], R4 ;\nLDL R3, [R1] ;\nSTL.U8 [R1], R1 ;\n"
    assert spilled_bytes(sass) == 8 + 4 + 16 + 1


# The command ----------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import torch
import triton
import triton.language as tl

@triton.jit
def matmul(a, c, K: tl.constexpr):
    i, k = tl.arange(0, 64), tl.arange(0, K)
    left = tl.load(a + i[:, None] * K + k)
    tl.store(c + i[:, None] * 64 + i, tl.dot(left, tl.trans(left)))

print("starts")  # a worker does not
a = torch.ones(64, 64, dtype=torch.float16, device="mtia")
c = torch.empty(64, 64, device="mtia")
matmul[(1,)](a, c, K=int(sys.argv[1]))
print(c[0, 0].item())
"""


def test_the_command_reports_and_keeps_the_programs_status(run_python: RunPython, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*arguments: str) -> Any:
        return run_python("-m", "torch_mtia.triton", *arguments, TRITON_CACHE_DIR=str(cache))

    good = run("--target", f"{CUDA},{HIP}", "--strict", "--json", "r.json", "--html", "r.html", "--baseline", "b.json",
               "script.py", "32")  # fmt: skip
    assert good.output() == "starts\n32.0\n"
    assert "matmul at " in good.stderr
    assert "wrote b.json" in good.stderr
    assert len(json.loads((tmp_path / "r.json").read_text())["rows"]) == 2
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    figures = json.loads((tmp_path / "b.json").read_text())
    figures[next(iter(figures))]["registers"] = 8
    (tmp_path / "b.json").write_text(json.dumps(figures))
    worse = run("--target", CUDA, "--baseline", "b.json", "script.py", "32")
    assert worse.returncode == 1
    assert "registers were 8 and are " in worse.stderr

    bad = run("--target", CUDA, "--strict", "script.py", "8")
    assert bad.returncode == 1
    assert "matmul(K=8) on cuda:90: fails: " in bad.stderr
    assert bad.stdout == "starts\n8.0\n"
    assert "is not a target" in run("--target", "h100", "script.py", "32").stderr


def test_the_setting_reports_at_the_end_of_the_process_and_leaves_out_generated_kernels(
    run_python: RunPython, tmp_path: Path, cache: Path
) -> None:
    text = SCRIPT + "torch.compile(lambda x: x + 1)(c)\n"
    (tmp_path / "script.py").write_text(text)
    run = run_python("script.py", "32", TORCH_MTIA_TARGETS=CUDA, TRITON_CACHE_DIR=str(cache))
    assert run.output() == "starts\n32.0\n"
    assert "torch_mtia: 1 specialization of kernels on cuda:90" in run.stderr
    assert "left out: 1 kernel of Inductor's or torch_mtia's" in run.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_plug_in_of_pytest_reports_and_fails_a_strict_session(
    run_python: RunPython, tmp_path: Path, cache: Path, workers: tuple[str, ...]
) -> None:
    body = SCRIPT.partition("print(")[0].replace("import sys\n", "")
    test = """
def test_something_else():
    pass

def test_it():
    a = torch.ones(64, 64, dtype=torch.float16, device="mtia")
    matmul[(1,)](a, torch.empty(64, 64, device="mtia"), K=8)
"""
    (tmp_path / "test_it.py").write_text(body + test)
    options = ("-m", "pytest", "-p", "torch_mtia.portability.pytest_plugin", "--kernel-targets", CUDA, *workers,
               "test_it.py")  # fmt: skip
    said = run_python(*options, TRITON_CACHE_DIR=str(cache))
    assert "matmul at " in said.output()
    refused = run_python(*options, "--kernel-targets-strict", TRITON_CACHE_DIR=str(cache))
    assert refused.returncode == 1
    assert "matmul(K=8) on cuda:90: fails: " in refused.stdout
    assert "2 passed" in refused.stdout
