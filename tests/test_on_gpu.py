"""The script for machines with a GPU, as far as it can be tested without one: launches are compared with a report."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import jit

from tools.on_gpu import compare, kernels
from torch_mtia.portability.binary import code_sha256
from torch_mtia.portability.launches import Recording
from torch_mtia.portability.report import Report
from torch_mtia.triton import targets

H100 = GPUTarget("cuda", 90, 32)


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.jit
def dot(a, c, M: tl.constexpr, K: tl.constexpr):
    i, k = tl.arange(0, M), tl.arange(0, K)
    left = tl.load(a + i[:, None] * K + k)
    tl.store(c + i[:, None] * M + i, tl.dot(left, tl.trans(left)))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path_factory.mktemp("cache"))
        yield Path(knobs.cache.dir)


def launch_all() -> None:
    x, half = torch.ones(1024).to("mtia"), torch.ones(64, 64, dtype=torch.float16).to("mtia")
    for n in (1000, 1024):
        add[(1,)](x, x, x, n, BLOCK=1024)
    add[(1,)](x[1:], x, x, 512, BLOCK=512, num_warps=8)
    for K in (64, 8):
        dot[(1,)](half, x, M=16, K=K)


@pytest.fixture(scope="module")
def report() -> Report:
    with targets("cuda:90", bound=True) as found:
        launch_all()
    return found


def launch_of_a_gpu(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands in for JITFunction.run on an H100: compiles what that would compile, and launches nothing."""
    del kwargs["grid"], kwargs["warmup"]
    backend = triton.compiler.make_backend(H100)
    binder = jit.create_function_from_signature(fn.signature, fn.params, backend)
    given = {"debug": False, "instrumentation_mode": "", **kwargs}
    bound, specialization, options = binder(*args, **given)
    options, signature, constants, attributes = fn._pack_args(backend, given, bound, specialization, options)
    return triton.compile(ASTSource(fn, signature, constants, attributes), target=H100, options=vars(options))


def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, milliseconds: float) -> dict[str, compare.Launch]:
    """Of the same program there, with a cache of its own."""
    recorder = compare.Recorder(lambda _: milliseconds)
    run = recorder.run(launch_of_a_gpu)

    def without_failures(fn: Any, *args: Any, **kwargs: Any) -> Any:
        return None if kwargs.get("K") == 8 else run(fn, *args, **kwargs)

    monkeypatch.setattr(jit.JITFunction, "run", without_failures)
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    launch_all()
    return recorder.launches


def rows_of(report: Report) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(report.to_json())["rows"]
    return rows


def test_the_gpus_own_process_compiles_the_same_code(
    report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = list(compare.compared(rows_of(report), launches(monkeypatch, tmp_path, 1.0), "H100"))
    assert all(line.is_good for line in lines)
    texts = [line.text for line in lines]
    assert len(texts) == 5
    assert texts[0].startswith("add(BLOCK=1024): same code, 1000.00 us, bound ")
    assert texts[-1] == "dot(M=16, K=8): fails, and was not launched here"


def test_other_code_and_times_below_the_bound_are_found(
    report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows, there = rows_of(report), launches(monkeypatch, tmp_path, 1e-9)
    rows[0]["code_sha256"] = ""
    lines = list(compare.compared(rows[:4], there, "H100"))
    assert lines[0].text.startswith("add(BLOCK=1024): OTHER CODE")
    assert lines[1].text.endswith(" BELOW THE BOUND")
    assert not any(line.is_good for line in lines)
    # Of a product without peaks, no time is compared; and a launch without a row is named.
    missing = list(compare.compared(rows[1:4], there, ""))
    assert missing[-1] == compare.Line("add: launched here, and not in the report", False)
    assert all(line.is_good for line in missing[:-1])


def test_code_is_the_same_wherever_its_source_is(report: Report, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("elsewhere", tmp_path / "elsewhere.py")
    assert spec is not None
    assert spec.loader is not None
    source = "import triton, triton.language as tl\n\n@triton.jit\n" + add.src
    (tmp_path / "elsewhere.py").write_text(source)
    module = importlib.util.module_from_spec(spec)
    sys.modules["elsewhere"] = module
    spec.loader.exec_module(module)
    x = torch.ones(1024).to("mtia")
    with targets("cuda:90", "hip:gfx942") as other:
        module.add[(1,)](x, x, x, 1000, BLOCK=1024)
    binary = Path(other.rows[0].files["cubin"]).read_bytes()
    assert binary != Path(report.rows[0].files["cubin"]).read_bytes()
    assert code_sha256(binary) == rows_of(report)[0]["code_sha256"]
    assert len(rows_of(other)[1]["code_sha256"]) == 64
    with pytest.raises(ValueError, match="not a file of ELF"):
        code_sha256(b"cubin")


def test_launches_are_timed_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.testing, "do_bench", lambda _, **options: 2.5 if options["return_mode"] == "min" else 0)
    assert compare._timer(60)(lambda: None) == 2.5
    assert compare._timer(-1)(lambda: None) is None


def test_a_report_of_another_version_or_target_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    active = SimpleNamespace(get_current_target=lambda: H100)
    monkeypatch.setattr(triton.runtime.driver, "_active", active)
    file = tmp_path / "report.json"
    for version, message in (("1.0", "the report is of Triton 1.0"), (triton.__version__, "has no rows for cuda:90")):
        file.write_text(json.dumps({"triton": version, "targets": ["cuda:80"], "rows": []}))
        monkeypatch.setattr(sys, "argv", ["compare.py", str(file), "script.py"])
        with pytest.raises(SystemExit):
            compare.main()
        assert message in capsys.readouterr().err


def test_the_kernels_are_twenty_and_run_here() -> None:
    recording = Recording()
    recording.start()
    kernels.main()
    recording.stop()
    assert len(recording.specializations) == 20
