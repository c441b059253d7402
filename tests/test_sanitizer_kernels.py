"""What the sanitizer says of Triton kernels, and that right ones give no reports. The faults are in tests/sanitizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl

from torch_mtia import sanitizer

if TYPE_CHECKING:
    from tests.conftest import RunScript


@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


@triton.jit
def careless_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, 2 * tl.load(x + offsets), mask=offsets < n)


@triton.jit
def histogram_kernel(x, bins):
    bin = bins + tl.load(x + tl.program_id(0))
    tl.store(bin, tl.load(bin) + 1)


@triton.jit
def asserting_kernel(x, out, n):
    tl.device_assert(n < 3, "n is small")
    tl.store(out, tl.load(x))


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    torch.mtia.synchronize()
    sanitizer.reports().clear()
    with sanitizer.enabled():
        yield
    sanitizer.reports().clear()


def launch_double(x: torch.Tensor, out: torch.Tensor, **options: Any) -> None:
    double_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256, **options)


def text_of(report: sanitizer.Report) -> str:
    """Without what a test is run by."""
    text = re.sub(r"(?m)^    (?!.*test_sanitizer_kernels).*\n", "", str(report))
    return re.sub(r"\S*test_sanitizer_kernels\.py", "test.py", text)  # Triton's cache may know a copy of this file


def line_of(kernel: Any, text: str) -> int:
    lines, first = kernel.raw_src, kernel.starting_line_number
    return int(first) + next(number for number, line in enumerate(lines) if text in line)


def test_an_access_that_leaves_its_tensor_is_told_and_left_out() -> None:
    x, out = torch.ones(1000, device="mtia"), torch.zeros(900, device="mtia")
    neighbour = torch.zeros(900, device="mtia")
    careless_kernel[(4,)](x, out, 1000, BLOCK=256)
    reads, writes = sorted(sanitizer.reports(), key=lambda report: report.access.writes)
    assert neighbour.sum() == 0
    assert out.sum() == 2 * 900
    assert reads.bounds == (x.data_ptr(), 4000)
    assert writes.access.line is not None
    assert writes.access.line.argument == "out"
    assert writes.access.program == (3, 0, 0)
    assert re.sub(r":\d+ in", ":N in", text_of(reads)) == (
        "Out of bounds: a kernel accesses memory outside its tensor; the access was skipped\n"
        "  program (3, 0, 0) of careless_kernel reads 4 bytes on the default stream of device 0\n"
        f"    test.py:{line_of(careless_kernel, 'tl.store')}, through argument x\n"
        "    test.py:N in test_an_access_that_leaves_its_tensor_is_told_and_left_out\n"
        "  0 bytes past the end of the tensor, which has 4000 bytes\n"
        "  the tensor was allocated at\n"
        "    test.py:N in test_an_access_that_leaves_its_tensor_is_told_and_left_out\n"
        "  Fix: mask the lanes beyond the tensor, as `mask=offsets < n` does, or pass the right size and strides."
    )


def test_a_race_between_programs_names_both() -> None:
    x, bins = torch.arange(8, device="mtia") % 5, torch.zeros(5, dtype=torch.int32, device="mtia")
    histogram_kernel[(8,)](x, bins)
    (report,) = sanitizer.reports()
    assert report.earlier is not None
    assert (report.access.program, report.earlier.program) == ((5, 0, 0), (0, 0, 0))
    assert (report.access.writes, report.earlier.writes) == (False, True)
    same = "program (0, 0, 0) of histogram_kernel writes 4 bytes on the default stream of device 0, in the same launch"
    assert same in str(report)


def test_elements_that_nothing_has_written_are_known() -> None:
    x, out = torch.empty(1000, device="mtia"), torch.empty(1000, device="mtia")
    x[::2] = 1
    x[1::2] = 2
    launch_double(x, out)
    assert out.sum().item() == 3000
    assert not sanitizer.reports()
    y = torch.empty(1000, device="mtia")
    launch_double(y, out)
    (report,) = sanitizer.reports()
    assert report.kind == "uninitialized"
    assert report.access.line is not None
    assert report.access.line.argument == "x"


def test_what_comes_behind_a_kernel_is_looked_at_when_the_kernel_has_run() -> None:
    """A launch that is queued behind something slow, on a stream that another one does not wait for."""
    side = torch.Stream("mtia")
    x, out = torch.ones(1 << 20, device="mtia"), torch.zeros(1 << 20, device="mtia")
    for _ in range(20):
        x = x.sin()
    launch_double(x, out)
    with side:
        total = out.sum()
    del x, total
    torch.mtia.current_stream().wait_stream(side)
    assert out.sum().isfinite()
    (report,) = sanitizer.reports()
    assert report.kind == "race"
    assert report.earlier is not None
    assert report.earlier.operator == "double_kernel"


def test_each_replay_of_a_graph_is_followed() -> None:
    x, out = torch.ones(1000, device="mtia"), torch.zeros(1000, device="mtia")
    index = torch.arange(5, device="mtia")
    bins = torch.zeros(5, dtype=torch.int32, device="mtia")
    launch_double(x, out)
    histogram_kernel[(5,)](index, bins)
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        launch_double(x, out)
        histogram_kernel[(5,)](index, bins)
        total = out.sum()
    graph.replay()
    assert total == 2000
    assert not sanitizer.reports()
    index.zero_()  # programs meet in this replay
    graph.replay()
    assert {report.kind for report in sanitizer.reports()} == {"race between programs"}
    sanitizer.reports().clear()
    side = torch.Stream("mtia")
    with side:
        graph.replay()  # nothing makes it wait
    assert "race" in {report.kind for report in sanitizer.reports()}
    torch.mtia.synchronize()


def test_a_kernel_writes_what_a_later_node_of_its_graph_reads() -> None:
    x = torch.ones(1000, device="mtia")
    out = torch.empty(1000, device="mtia")
    launch_double(x, torch.zeros(1000, device="mtia"))
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        launch_double(x, out)
        total = out.sum()
    graph.replay()
    assert total == 2000
    assert not sanitizer.reports()


def test_a_kernel_that_fails_does_not_hold_the_others_up() -> None:
    x, out = torch.ones(10, device="mtia"), torch.zeros(10, device="mtia")
    asserting_kernel[(1,)](x, out, 5, debug=True)
    with pytest.raises(RuntimeError, match="n is small"):
        torch.mtia.synchronize()
    assert not sanitizer.reports()
    torch.empty(10, device="mtia") + 1
    assert len(sanitizer.reports()) == 1


def test_launches_that_nobody_can_follow_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    x, out = torch.ones(1000, device="mtia"), torch.empty(1000, device="mtia")
    launch_double(x, out, instrument=False)
    out.sum()  # it may have been written
    sanitizer.print_reports()
    assert re.search(r"not checked: double_kernel \(once\), compiled or captured before", capfd.readouterr().err)
    assert not sanitizer.reports()


def test_results_are_those_of_kernels_that_nobody_watches() -> None:
    for size in (1, 17, 1000):
        x = torch.randn(size, device="mtia")
        watched, unwatched = torch.zeros(size, device="mtia"), torch.zeros(size, device="mtia")
        launch_double(x, watched)
        launch_double(x, unwatched, instrument=False)
        assert torch.equal(watched, unwatched)


COMPILED = """
import torch
from torch_mtia import sanitizer

def step(x, table, index):
    rows = torch.nn.functional.embedding(index, table)
    scaled = torch.nn.functional.layer_norm(rows, rows.shape[-1:]).softmax(-1)
    return (scaled @ x).relu().sum() + torch.zeros_like(table).index_add_(0, index, rows).amax(0).cumsum(0).mean()

with sanitizer.enabled():
    x, table = (torch.randn(33, 33, device="mtia", requires_grad=True) for _ in range(2))
    index = torch.randint(0, 33, (50,), device="mtia")
    for mode in (None, "reduce-overhead"):
        compiled = torch.compile(step, mode=mode)
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x, table, index).backward()
        torch.compiler.reset()
sanitizer.print_reports()
"""


@pytest.mark.wide
def test_compiled_code_gives_no_reports(run_script: RunScript, tmp_path: Path) -> None:
    """Its kernels are compiled for it, whatever was in caches."""
    folder = str(tmp_path)
    finished = run_script(COMPILED, TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=folder)
    assert finished.stderr.splitlines()[-1] == "torch_mtia sanitizer: no reports", finished.stderr
    assert "not checked" not in finished.stderr


TWO_DEVICES = """
import sys
import torch
sys.path.insert(0, {folder!r})
from sanitizer.corpus import triton_kernel
from torch_mtia import sanitizer

kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes))
''')
with sanitizer.enabled():
    with torch.device("mtia:1"), torch.mtia.device(1):
        kernel[(1,)](torch.ones(60), torch.zeros(64), BLOCK=64)
(report,) = sanitizer.reports()
print(report.kind, report.access.device, report.bounds[1])
"""


def test_a_report_names_the_file_of_its_own_program(run_script: RunScript, tmp_path: Path) -> None:
    """Not that of a copy which has compiled the kernel before."""
    script = """
        import torch, triton, triton.language as tl
        from torch_mtia import sanitizer

        @triton.jit
        def beyond(x, BLOCK: tl.constexpr):
            tl.store(x + tl.arange(0, BLOCK), 1.0)

        with sanitizer.enabled():
            beyond[(1,)](torch.zeros(4, device="mtia"), BLOCK=8)
        for report in sanitizer.reports():
            print(report.access.line)
    """
    for number in range(2):
        finished = run_script(script, TRITON_CACHE_DIR=str(tmp_path / "cache"))
        assert f"script{number}.py:7," in finished.output()


@pytest.mark.wide
def test_a_kernel_of_another_device(run_script: RunScript) -> None:
    folder = str(Path(__file__).parent)
    finished = run_script(TWO_DEVICES.format(folder=folder), TORCH_MTIA_DEVICES="2")
    assert finished.stdout == "out of bounds 1 240\n"


def test_a_graph_names_its_kernels_and_the_lines_of_its_capture() -> None:
    index, bins = torch.zeros(5, dtype=torch.int64, device="mtia"), torch.zeros(5, dtype=torch.int32, device="mtia")
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        histogram_kernel[(5,)](index, bins)
    for _ in range(3):
        graph.replay()
    (report,) = sanitizer.reports()
    assert (report.kind, report.access.operator) == ("race between programs", "histogram_kernel")
    assert report.count == 3 * 2  # it loads and stores
    assert any(Path(__file__).name in frame.file for frame in report.access.frames)


def test_the_order_of_a_graph_is_told_once_whoever_replays_it() -> None:
    x, out = torch.ones(1000, device="mtia"), torch.zeros(1000, device="mtia")
    side, third = torch.Stream("mtia"), torch.Stream("mtia")
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        main = torch.mtia.current_stream()
        side.wait_stream(main)
        launch_double(x, out)
        with side:
            out.exp()
        main.wait_stream(side)
    assert not sanitizer.reports()  # of kernels nothing is known yet
    for stream in (torch.mtia.current_stream(), third, torch.mtia.current_stream()):
        stream.wait_stream(third)
        third.wait_stream(torch.mtia.current_stream())
        with stream:
            graph.replay()
    torch.mtia.current_stream().wait_stream(third)
    graph.reset()  # replays may be under way
    (report,) = sanitizer.reports()
    assert report.earlier is not None
    assert (report.access.operator, report.earlier.operator, report.count) == ("aten::exp", "double_kernel", 1)
    sanitizer.reports().clear()
    # What is captured anew is another graph.
    with torch.mtia.graph(graph):
        launch_double(x, out)
        out.exp()
    graph.replay()
    assert not sanitizer.reports()


def test_a_graph_that_was_captured_before_is_not_checked(capfd: pytest.CaptureFixture[str]) -> None:
    x, out = torch.ones(1000, device="mtia"), torch.zeros(1000, device="mtia")
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        launch_double(x, out)
    sanitizer.start()
    graph.replay()
    assert out.sum() == 2000
    sanitizer.print_reports()
    assert re.search(r"not checked: graph \(once\), compiled or captured before", capfd.readouterr().err)
    assert not sanitizer.reports()


CHECKED_BOUNDS = """
import sys
import torch
sys.path.insert(0, {folder!r})
from sanitizer.corpus import triton_kernel
from torch_mtia import sanitizer

kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes))
''')
for checks in ("streams", "memory"):
    with sanitizer.enabled(checks):
        kernel[(1,)](torch.ones(60, device="mtia"), torch.zeros(64, device="mtia"), BLOCK=64)
    print(*(report.kind for report in sanitizer.reports()))
    sanitizer.reports().clear()
"""


@pytest.mark.wide
def test_bounds_that_the_environment_asks_for_stay_checked(run_script: RunScript) -> None:
    script = CHECKED_BOUNDS.format(folder=str(Path(__file__).parent))
    assert run_script(script, TORCH_MTIA_CHECK_BOUNDS="1").stdout == "out of bounds\nout of bounds\n"
    assert run_script(script).stdout == "\nout of bounds\n"


TWO_DEVICES_IN_A_GRAPH = """
import sys
import torch
sys.path.insert(0, {folder!r})
from sanitizer.corpus import triton_kernel
from torch_mtia import sanitizer

kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes))
''')
with sanitizer.enabled():
    x, y = torch.ones(64, device="mtia:0"), torch.ones(64, device="mtia:1")
    out, other = torch.zeros_like(x), torch.zeros_like(y)
    side, third = torch.Stream("mtia:1"), torch.Stream("mtia:1")
    torch.mtia.synchronize(1)
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        main = torch.mtia.current_stream()
        side.wait_stream(main)
        third.wait_stream(main)
        kernel[(1,)](x, out, BLOCK=64)
        with side:
            kernel[(1,)](y, other, BLOCK=64)
        with third:
            total = other.sum()
        main.wait_stream(side)
        main.wait_stream(third)
    graph.replay()
    torch.mtia.synchronize()
for report in sanitizer.reports():
    print(report.kind, report.access.operator, report.access.device, report.earlier.operator)
"""


@pytest.mark.wide
def test_a_graph_of_two_devices(run_script: RunScript) -> None:
    finished = run_script(TWO_DEVICES_IN_A_GRAPH.format(folder=str(Path(__file__).parent)), TORCH_MTIA_DEVICES="2")
    assert finished.stdout == "race aten::sum 1 kernel\n", finished.stderr
