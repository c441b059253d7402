"""What PyTorch writes for those who debug compiled code works for code on mtia, in processes of its own."""

from __future__ import annotations

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
    measured = run_script(code + "\nprint('seconds', benchmark_compiled_module(get_args()))").output()
    assert float(measured.rpartition("seconds")[2]) > 0
