"""What PyTorch writes for those who debug compiled code works for code on mtia, in processes of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunScript

PROGRAM = """
    import torch
    import triton
    import triton.language as tl

    FACTOR: tl.constexpr = tl.constexpr(2)

    @triton.jit
    def doubled(x):
        return x * FACTOR

    @triton.autotune([triton.Config({"BLOCK": size}) for size in (32, 64)], key=["size"])
    @triton.jit
    def kernel(x, out, size, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + offsets, doubled(tl.load(x + offsets, offsets < size)), offsets < size)

    def function(x):
        out = torch.empty_like(x)
        kernel[lambda config: (triton.cdiv(x.numel(), config["BLOCK"]),)](x, out, x.numel())
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
        TORCH_LOGS="output_code",
        TORCH_MTIA_LAUNCH_BLOCKING="1",
    )
    finished.output()
    assert "import mtia.host_runtime.torch_mtia.dynamic_library" in finished.stderr
    assert re.search(r'"best_kernel": "\w*mm', finished.stderr)
    folder = next(tmp_path.glob("torch_compile_debug/*/torchinductor/*"))
    assert {path.name for path in folder.iterdir()} >= {
        "fx_graph_readable.py",
        "fx_graph_transformed.py",
        "inductor_provenance_tracking_node_mappings.json",
        "ir_post_fusion.txt",
        "ir_pre_fusion.txt",
    }
    assert '"cuda_device_name"' in (folder / "autotuning_result_json_list.txt").read_text()
    runnable = (folder / "fx_graph_runnable.py").read_text()
    for part in ("doubled", "@triton.autotune(", "os.environ['TORCH_MTIA_LAUNCH_BLOCKING'] = '1'"):
        assert part in runnable
    run_script(runnable).output()
    code = (folder / "output_code.py").read_text()
    assert "device='mtia:0'" in code
    assert_it_is_timed(run_script, code)


def assert_it_is_timed(run_script: RunScript, code: str) -> None:
    arguments = "import sys; sys.argv[1:] = ['-p', '--times', '2', '--repeat', '2']\n"
    profile = run_script(arguments + code).output()
    assert re.search(r"^\d+\.\d+$", profile, re.MULTILINE)  # seconds
    assert "triton_" in profile


def test_a_graph_with_sizes_that_vary_and_a_constant_runs_by_itself(run_script: RunScript, tmp_path: Path) -> None:
    script = """
        import torch
        table = list(range(12))
        def function(x, n):
            return (x * n).view(-1, 2).sum(0) + x.shape[0] + torch.tensor(table, device="mtia")[:, None]
        torch.compile(function, dynamic=True)(torch.randn(20, 6, device="mtia"), 3)
    """
    run_script(script, TORCH_COMPILE_DEBUG="1", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache")).output()
    folder = next(tmp_path.glob("torch_compile_debug/*/torchinductor/*"))
    runnable = (folder / "fx_graph_runnable.py").read_text()
    assert "reader.symint(" in runnable
    run_script(runnable).output()
    code = (folder / "output_code.py").read_text()
    arguments = code[code.index("def get_args") : code.index("def benchmark")]
    assert re.search(r"_constant0 = rand_strided\(\(12, \)", arguments)
    assert " = 20\n" in arguments
    assert_it_is_timed(run_script, code)


@pytest.fixture
def trace(run_script: RunScript, tmp_path: Path) -> Path:
    """The structured trace of a compiled step, with a graph break, in a process of its own."""
    script = """
        import torch

        @torch.compile
        def function(x, w):
            y = torch.relu(x @ w + 1)
            torch._dynamo.graph_break()
            return y.sin().sum()

        x, w = torch.randn(2, 8, 8, device="mtia")
        function(x.requires_grad_(), w).backward()
    """
    folder, cache = tmp_path / "trace", tmp_path / "cache"
    run_script(script, INDUCTOR_PROVENANCE="1", TORCH_TRACE=str(folder), TORCHINDUCTOR_CACHE_DIR=str(cache)).output()
    (path,) = folder.iterdir()
    return path


def report(trace: Path, *options: str) -> Path:
    """The folder of the pages that tlparse makes of a trace."""
    folder = trace.parents[1] / "report"
    program = Path(sys.executable).with_name("tlparse")
    command = [str(program), str(trace), "-o", str(folder), "--no-browser", "--strict", *options]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert finished.returncode == 0, finished.stderr
    return folder


def test_what_the_structured_trace_names(trace: Path) -> None:
    folder = report(trace)
    first = {re.sub(r"_\w{52}(?=_\d+\.)|_\d+\.\w+$", "", path.name) for path in (folder / "-_0_0_1").iterdir()}
    assert first >= {
        "aot_backward_graph",
        "aot_forward_graph",
        "aot_joint_graph",
        "dynamo_output_graph",
        "fx_graph_cache_miss",
        "fx_graph_runnable",
        "inductor_output_code",
        "inductor_post_grad_graph",
        "inductor_provenance_tracking_node_mappings",
        "triton_kernel_info",
    }
    index = (folder / "index.html").read_text()
    links = [link for link in re.findall(r'href="(-[^"]+)"', index) if not (folder / link).exists()]
    assert not links
    assert "dynamo_graph_break_reason" in index
    assert "triton_" in next((folder / "-_0_0_1").glob("inductor_output_code*")).read_text()
    events = json.loads((folder / "chromium_events.json").read_text())
    assert {"inductor_compile", "code_gen"} <= {event["name"] for event in events}


def test_kernels_are_traced_to_the_lines_of_the_program(trace: Path) -> None:
    folder = report(trace, "--inductor-provenance")
    assert (folder / "provenance_tracking_-_0_0_1.html").exists()
    mappings = sorted((folder / "-_0_0_1").glob("inductor_provenance_tracking_node_mappings_*.json"))
    forward = json.loads(mappings[0].read_text())["cppCodeToPost"]
    (kernel,) = (name for name in forward if name.startswith("triton_"))
    assert {"add", "relu"} <= set(forward[kernel])
    traces = sorted((folder / "-_0_0_1").glob("inductor_provenance_tracking_kernel_stack_traces_*.json"))
    assert "torch.relu(x @ w + 1)" in "".join(json.loads(traces[0].read_text())[kernel])


def test_the_caches_of_one_process_serve_another(run_script: RunScript, tmp_path: Path) -> None:
    script = """
        import sys, torch, triton
        from pathlib import Path
        from torch._dynamo.utils import counters

        path, saves = Path("artifacts"), {saves}
        compiled = []
        triton.knobs.compilation.listener = lambda *, cache_hit, **_: compiled.append(not cache_hit)
        if not saves:
            print(sorted(torch.compiler.load_cache_artifacts(path.read_bytes()).artifacts))
        x = torch.randn(8, 8, device="mtia", requires_grad=True)
        step = torch.compile(lambda x: (x @ x).relu().sum())
        step(x).backward()
        if saves:
            path.write_bytes(torch.compiler.save_cache_artifacts()[0])
        hits = counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]
        print(*hits, counters["inductor"]["fxgraph_cache_miss"], sum(compiled))
    """
    first, second = (
        run_script(
            script.format(saves=saves),
            TORCHINDUCTOR_CACHE_DIR=str(folder),
            TRITON_CACHE_DIR=str(folder / "triton"),
            TORCHINDUCTOR_COMPILE_THREADS="1",
        )
        for saves, folder in ((True, tmp_path / "one"), (False, tmp_path / "two"))
    )
    assert re.search(r"^0 0 2 [1-9]\d*$", first.output(), re.MULTILINE)
    assert second.output().splitlines()[-2:] == ["['aot_autograd', 'inductor']", "2 1 0 0"]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("after", "arguments", "operator"),
    [
        ("aot", ["minify", "--no-isolate"], r"torch\.ops\.aten\.(\w+)\."),
        pytest.param("dynamo", ["minify"], r"= torch\.(\w+)\(", marks=pytest.mark.wide),
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
