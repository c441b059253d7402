"""What PyTorch writes for those who debug compiled code works for code on mtia, in processes of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunScript

PROGRAM = """
    import torch
    import triton
    import triton.language as tl

    BLOCK: tl.constexpr = tl.constexpr(64)

    @triton.jit
    def doubled(x):
        return x * 2

    @triton.jit
    def kernel(x, out, size):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + offsets, doubled(tl.load(x + offsets, offsets < size)), offsets < size)

    def function(x):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel())
        return (out.sin() + x @ x).sum(1)

    x = torch.randn(20, 20, device="mtia")
    torch.testing.assert_close(torch.compile(function)(x), ((2 * x).sin() + x @ x).sum(1))
"""


@pytest.mark.slow
def test_debug_output_runs_by_itself(run_script: RunScript, tmp_path: Path) -> None:
    finished = run_script(
        PROGRAM,
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
        TORCH_COMPILE_DEBUG="1",
        LOG_AUTOTUNE_RESULTS="1",
        TORCHINDUCTOR_MAX_AUTOTUNE="1",
        TORCH_TRACE=str(tmp_path / "trace"),
        TORCH_LOGS="output_code",
    )
    finished.output()
    assert "import mtia.host_runtime.torch_mtia.dynamic_library" in finished.stderr
    assert any(path.stat().st_size > 1000 for path in (tmp_path / "trace").iterdir())
    folder = next(tmp_path.glob("torch_compile_debug/*/torchinductor/*"))
    assert '"cuda_device_name"' in (folder / "autotuning_result_json_list.txt").read_text()
    runnable = (folder / "fx_graph_runnable.py").read_text()
    assert "doubled" in runnable
    run_script(runnable).output()
    code = (folder / "output_code.py").read_text()
    assert "device='mtia:0'" in code
    arguments = "import sys; sys.argv[1:] = ['-p', '--times', '2', '--repeat', '2']\n"
    profile = run_script(arguments + code).output()
    assert re.search(r"^0\.\d+$", profile, re.MULTILINE)  # seconds
    assert "triton_" in profile


def test_a_graph_with_sizes_that_vary_runs_by_itself(run_script: RunScript, tmp_path: Path) -> None:
    script = """
        import torch
        function = torch.compile(lambda x, n: (x * n).view(-1, 2).sum(0) + x.shape[0], dynamic=True)
        x = torch.randn(20, 6, device="mtia")
        function(x, 3)
    """
    run_script(script, TORCH_COMPILE_DEBUG="1", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")).output()
    folder = next(tmp_path.glob("torch_compile_debug/*/torchinductor/*"))
    runnable = (folder / "fx_graph_runnable.py").read_text()
    assert "reader.symint(" in runnable
    run_script(runnable).output()


@pytest.mark.parametrize(
    ("after", "arguments", "operator"),
    [
        ("aot", ["minify", "--no-isolate"], r"torch\.ops\.aten\.(\w+)\."),
        pytest.param("dynamo", ["minify"], r"= torch\.(\w+)\(", marks=pytest.mark.slow),
    ],
)
def test_the_minifier_finds_the_operator_that_cannot_be_compiled(
    run_script: RunScript, tmp_path: Path, after: str, arguments: list[str], operator: str
) -> None:
    script = """
        import torch
        torch._inductor.config.triton.inject_relu_bug_TESTING_ONLY = "compile_error"
        torch.compile(lambda x, y: torch.relu(x.sin() + y).cos())(*torch.randn(2, 20, device="mtia"))
    """
    failed = run_script(
        script,
        TORCHDYNAMO_REPRO_AFTER=after,
        TORCHINDUCTOR_COMPILE_THREADS="1",
        TORCH_COMPILE_DEBUG_DIR=str(tmp_path),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert failed.returncode == 1
    launcher = next(tmp_path.glob("torch_compile_debug/*/minifier/minifier_launcher.py")).read_text()
    run_script(f"import sys; sys.argv[1:] = {arguments}\n{launcher}", TORCHINDUCTOR_COMPILE_THREADS="1").output()
    minimal = next(tmp_path.rglob("repro.py")).read_text()
    assert re.findall(operator, minimal[minimal.index("class Repro") :]) == ["relu"]
    assert "device=device(type='mtia', index=0)" in minimal
