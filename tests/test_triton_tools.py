"""What Triton's tutorials use beside kernels: properties of the device, benchmarks, autotuning's reports, Proton."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunScript


TUNED = """
import torch
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 1024})], key=["size"])
@triton.jit
def kernel(x, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, offsets.to(tl.float32), offsets < size)

kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](torch.empty(1000, device="mtia"), 1000)
"""


@triton.jit
def double(x, out, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, offsets < size) * 2, offsets < size)


def test_a_grid_is_made_of_what_the_device_and_a_compiled_kernel_say(device: torch.device) -> None:
    properties = triton.runtime.driver.active.utils.get_device_properties(0)
    assert properties["multiprocessor_count"] == torch.mtia.get_device_properties(0)["multi_processor_count"]
    x = torch.rand(1000, device=device)
    out = torch.empty_like(x)
    kernel = double.warmup(x, out, 1000, BLOCK=128, grid=(1,))
    kernel._init_handles()
    assert 0 < kernel.n_regs <= properties["max_num_regs"]
    assert 0 <= kernel.metadata.shared <= properties["max_shared_mem"]
    kernel[(8, 1, 1)](x, out, 1000, 128)
    assert torch.equal(out, x * 2)


def test_do_bench_gives_quantiles_in_order(device: torch.device) -> None:
    x = torch.zeros(1 << 16, device=device)
    out = torch.empty_like(x)
    middle, low, high = triton.testing.do_bench(
        lambda: double[(64,)](x, out, x.numel(), BLOCK=1024), warmup=1, rep=5, quantiles=[0.5, 0.2, 0.8]
    )
    assert 0 < low <= middle <= high


def test_perf_report_writes_its_table_and_its_plot(device: torch.device, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="triton.testing.perf_report makes its table with pandas")

    @triton.testing.perf_report(
        triton.testing.Benchmark(
            x_names=["size"],
            x_vals=[1000, 2000],
            line_arg="provider",
            line_vals=["triton", "torch"],
            line_names=["Triton", "PyTorch"],
            styles=[("blue", "-"), ("green", "-")],
            ylabel="GB/s",
            plot_name="doubling",
            args={},
        )
    )
    def benchmark(size: int, provider: str) -> float:
        x = torch.rand(size, device=device)
        out = torch.empty_like(x)
        run = {
            "triton": lambda: double[(triton.cdiv(size, 1024),)](x, out, size, BLOCK=1024),
            "torch": lambda: torch.mul(x, 2, out=out),
        }[provider]
        return float(8e-6 * size / triton.testing.do_bench(run, warmup=1, rep=2))

    table = benchmark.run(save_path=str(tmp_path), return_df=True)
    assert list(table["size"]) == [1000, 2000]
    assert (table["Triton (GB/s)"] > 0).all()
    assert {"doubling.png", "doubling.csv"} <= {path.name for path in tmp_path.iterdir()}


def test_autotuning_says_what_it_chose(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "tuned.py").write_text(TUNED)
    finished = run_script(f"import runpy; runpy.run_path({str(tmp_path / 'tuned.py')!r})", TRITON_PRINT_AUTOTUNING="1")
    assert re.search(r"best config selected: BLOCK: (64|1024),", finished.output())


@pytest.mark.in_tree("Triton's backend is called mtia, whatever the device is")
def test_proton_has_no_backend_for_the_device(run_script: RunScript) -> None:
    printed = run_script("""
        import torch
        import triton.profiler as proton
        for backend in (None, "instrumentation"):
            try:
                proton.start("profile", hook="triton", backend=backend)
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
    """).output()
    # Of Triton 3.7, and of 3.8 and later.
    of_target = "No backend is available for the current target|No profiler registered for triton backend mtia"
    of_instrumentation = "(Runtime|Value)Error: .*[Uu]nknown .*device type.*: mtia"
    assert re.fullmatch(rf"ValueError: ({of_target})\.?\n{of_instrumentation}\n", printed), printed


def test_what_others_compile_with_llvmlite_stays_as_it_is(run_script: RunScript) -> None:
    """The option that our passes need is one of the whole process."""
    printed = run_script('''
        import platform
        import llvmlite.binding as llvm
        from torch_mtia.triton import machine

        SOURCE = """
        define i32 @f(i1 %c, i32 %n) {
        entry:
          br i1 %c, label %a, label %b
        a:
          br label %m
        b:
          br label %m
        m:
          %p = phi i32 [1, %a], [2, %b]
          %q = add i32 %p, %n
          %r = mul i32 %p, 3
          %s = add i32 %q, %r
          ret i32 %s
        }"""

        def optimized(level):
            module = llvm.parse_assembly(SOURCE)
            target = llvm.Target.from_default_triple().create_target_machine()
            builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=level))
            manager = builder.getModulePassManager()
            manager.run(module, builder)
            return str(module)

        llvm.initialize_native_target()
        before = [optimized(level) for level in range(4)]
        machine.data_layout("aarch64" if platform.machine() == "aarch64" else "x86-64")
        print(before == [optimized(level) for level in range(4)])
    ''').output()
    assert printed == "True\n"


WITHOUT_LLVMLITE = """
import sys
sys.modules["llvmlite"] = None
import torch, triton, triton.language as tl

@triton.jit
def kernel(x):
    tl.store(x, 1.0)

try:
    kernel[(1,)](torch.zeros(1, device="mtia"))
except ImportError as error:
    print(error)
"""


def test_without_llvmlite_the_remedy_is_named(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "launches.py").write_text(WITHOUT_LLVMLITE)
    assert "pip install 'torch_mtia[triton]'" in run_script("import launches").output()
