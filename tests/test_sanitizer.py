"""The sanitizer finds the fault of every program in tests/sanitizer, and nothing once it is mended."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import triton
from sanitizer import captures, graphs, host, kernel_numbers, kernels, leaks, memory, numbers, streams
from sanitizer.corpus import Program, triton_kernel
from torch._inductor import config

import torch_mtia
from torch_mtia import sanitizer

if TYPE_CHECKING:
    from tests.conftest import RunPython, RunScript

PROGRAMS = [
    *streams.RACES,
    *streams.FREED,
    *memory.UNINITIALIZED,
    *captures.CAPTURED,
    *captures.KERNELS,
    *host.RACES,
    *graphs.FREED,
    *graphs.RACES,
    *kernels.PROGRAMS,
    *numbers.NUMBERS,
    *kernel_numbers.PROGRAMS,
]
RUN = """
import sys
import torch
from torch_mtia import sanitizer

main, side, third = torch.mtia.current_stream(), torch.Stream("mtia"), torch.Stream("mtia")
with sanitizer.enabled():
    exec(compile({text!r}, "program.py", "exec"))
for report in sanitizer.reports():
    print(report.to_json())
"""


def reports_of(text: str) -> list[sanitizer.Report]:
    names = {
        "torch": torch,
        "triton": triton,
        "triton_kernel": triton_kernel,
        "main": torch.mtia.current_stream(),
        "side": torch.Stream("mtia"),
        "third": torch.Stream("mtia"),
    }
    torch.mtia.synchronize()
    sanitizer.reports().clear()
    with sanitizer.enabled():
        exec(compile(text, "program.py", "exec"), names)
    torch.mtia.synchronize()
    found = list(sanitizer.reports())
    sanitizer.reports().clear()
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_faults_are_found(program: Program) -> None:
    found = reports_of(program.faulty)
    assert {report.kind for report in found} == {program.kind}, "\n\n".join(map(str, found))
    accesses = [access for access in (found[0].access, found[0].earlier) if access is not None]
    assert tuple(access.operator for access in accesses) == program.operators
    frames = (*found[0].access.frames, *found[0].access.forward, *found[0].access.backward)
    assert any(frame.file == "program.py" for frame in frames)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_what_mends_them_is_not_reported(program: Program) -> None:
    found = reports_of(program.mended)
    assert not found, "\n\n".join(map(str, found))


RIGHT = host.RIGHT | memory.RIGHT | streams.RIGHT


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_not_reported(name: str) -> None:
    found = reports_of(RIGHT[name])
    assert not found, "\n\n".join(map(str, found))


def leaks_of(text: str) -> list[sanitizer.Report]:
    names = {"torch": torch}
    sanitizer.reports().clear()
    with sanitizer.enabled("memory"):
        exec(compile(text, "program.py", "exec"), names)
        sanitizer.find_leaks()
    found = list(sanitizer.reports())
    sanitizer.reports().clear()
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("program", leaks.LEAKS, ids=lambda program: program.name)
def test_leaks_are_found(program: Program) -> None:
    found = leaks_of(program.faulty)
    assert found, "no report"
    assert {report.kind for report in found} == {"leak"}
    assert any(frame.file == "program.py" for frame in found[0].access.frames)
    assert "Leak: the same lines keep allocating memory" in str(found[0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("program", leaks.LEAKS, ids=lambda program: program.name)
def test_what_mends_leaks_is_not_reported(program: Program) -> None:
    assert not leaks_of(program.mended)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", leaks.RIGHT)
def test_what_programs_work_with_all_the_time_is_no_leak(name: str) -> None:
    found = leaks_of(leaks.RIGHT[name])
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.parametrize("program", streams.BETWEEN_DEVICES, ids=lambda program: program.name)
def test_devices(program: Program, run_script: RunScript) -> None:
    faulty, mended = (
        run_script(RUN.format(text=text), TORCH_MTIA_DEVICES="2") for text in (program.faulty, program.mended)
    )
    (report,) = map(json.loads, faulty.stdout.splitlines())
    assert report["kind"] == program.kind
    assert (report["access"]["operator"], report["earlier"]["operator"]) == program.operators
    assert mended.stdout == ""


def test_a_report_says_what_happened_where_and_what_to_write() -> None:
    race = streams.RACES[0]
    (report,) = reports_of(race.faulty)
    text = re.sub(r"stream [1-9]\d*", "stream N", str(report))
    text = re.sub(r"(?m)^    (?!program).*\n", "", text)
    text = text.replace("torch.mtia.current_stream().wait_stream(torch.mtia.default_stream())", "WAIT")
    assert (
        text
        == """\
Race: unordered accesses to the same memory, at least one of which writes
  aten::exp reads float32[1000] on stream N of device 0
    program.py:4 in <module>
  aten::normal_ writes float32[1000] on the default stream of device 0, submitted earlier
    program.py:1 in <module>
  Fix: before program.py:4, call `WAIT`."""
    )


def test_what_is_found_again_at_the_same_lines_is_counted() -> None:
    (report,) = reports_of("x = torch.empty(10, device='mtia')\nfor _ in range(5):\n    x + 1\n")
    assert report.count == 5
    assert "(5 times)" in str(report)


REPEATED = """
x = torch.empty(10, device="mtia")
def add_up():
    for _ in range(3000):
        x + 1
add_up()
add_up()
exec(compile("for _ in range(5000): x + 1", "first.py", "exec"))
exec(compile("for _ in range(5000): x + 1", "second.py", "exec"))
"""


def test_a_fault_that_is_repeated_keeps_no_more_memory() -> None:
    """Before reports() is called, too."""
    found = reports_of(REPEATED)
    places = [(Path(frame.file).name, frame.line) for frame in (report.access.frames[0] for report in found)]
    assert places == [("program.py", 5), ("program.py", 5), ("first.py", 1), ("second.py", 1)]
    assert [report.count for report in found] == [3000, 3000, 5000, 5000]


def test_a_host_function_must_not_wait_for_reports() -> None:
    raised: list[str] = []

    def ask() -> None:
        for call in (sanitizer.reports, sanitizer.stop):
            try:
                call()
            except RuntimeError as error:
                raised.append(str(error))

    sanitizer.reports().clear()
    before = config.compile_threads, torch.Tensor.numpy
    with sanitizer.enabled():
        torch_mtia.launch_host_function(torch.mtia.current_stream(), ask)
        torch.mtia.synchronize()
        torch.empty(10, device="mtia") + 1
        assert len(sanitizer.reports()) == 1  # it goes on
        assert torch.Tensor.numpy is not before[1]
    assert (config.compile_threads, torch.Tensor.numpy) == before
    sanitizer.reports().clear()
    assert len(raised) == 2
    assert "a host function must not" in raised[0]


def test_statements_of_several_threads_end_in_any_order() -> None:
    first, second = sanitizer.enabled("init"), sanitizer.enabled("streams")
    first.__enter__()
    thread = threading.Thread(target=second.__enter__)
    thread.start()
    thread.join()
    first.__exit__(None, None, None)
    assert torch_mtia._C._sanitizer_is_running()  # the second one's
    with sanitizer.enabled("init"):
        torch.empty(3, device="mtia") + 1
    (report,) = sanitizer.reports()
    assert report.kind == "uninitialized"
    assert torch_mtia._C._sanitizer_is_running()
    sanitizer.reports().clear()
    torch.empty(3, device="mtia") + 1  # "streams" only
    second.__exit__(None, None, None)
    assert not sanitizer.reports()
    assert not torch_mtia._C._sanitizer_is_running()


COLLECTED = """
import gc
import torch_mtia
from torch_mtia import sanitizer

def watched():
    with sanitizer.enabled("init"):
        yield

class Cycle:
    def __init__(self):
        self.me, self.watched = self, watched()
        next(self.watched)

gc.collect()
gc.freeze()
for first in range(1, 100):  # allocations before the collector comes
    gc.disable()
    Cycle()
    gc.set_threshold(first)
    gc.enable()
    with sanitizer.enabled("streams"):
        pass
gc.collect()
print(sanitizer._statements, torch_mtia._C._sanitizer_is_running())
"""


def test_the_garbage_collector_ends_a_statement_while_another_one_begins_or_ends(run_script: RunScript) -> None:
    assert run_script(COLLECTED).stdout == "[] False\n"


def test_a_host_function_must_not_watch() -> None:
    """It would wait for whoever ends a statement, who waits for kernels behind it."""
    raised: list[str] = []

    def watch() -> None:
        try:
            with sanitizer.enabled("streams"):
                pass
        except RuntimeError as error:
            raised.append(str(error))

    kernel = triton_kernel("\ndef kernel(x):\n    tl.store(x, 1.0)\n")
    x = torch.zeros(1, device="mtia")
    with sanitizer.enabled("init"):
        kernel[(1,)](x)  # compiles it
        torch_mtia.launch_host_function(torch.mtia.current_stream(), watch)
        kernel[(1,)](x)
    torch.mtia.synchronize()
    assert len(raised) == 1
    assert "a host function must not" in raised[0]
    assert not torch_mtia._C._sanitizer_is_running()


def test_only_what_was_asked_for_is_looked_for() -> None:
    sanitizer.reports().clear()
    for checks, expected in ((["memory"], 0), (["init"], 1), ([], 1)):
        with sanitizer.enabled(*checks):
            torch.empty(10, device="mtia") + 1
        assert len(sanitizer.reports()) == expected
        sanitizer.reports().clear()
    torch.empty(10, device="mtia") + 1
    assert not sanitizer.reports()
    known = "streams, memory, init, kernels, numbers"
    with pytest.raises(ValueError, match=f"there is no check 'races'; there are {known}"):
        sanitizer.start("races")


SCRIPT = """
import sys
import torch
print(sys.argv[1:], __name__)
x = torch.empty(10, device="mtia")
y = x + 1
"""


def test_a_script_is_run_under_the_sanitizer(run_python: RunPython, tmp_path: Path) -> None:
    script, reports = tmp_path / "faulty.py", tmp_path / "reports.jsonl"
    script.write_text(SCRIPT)
    options = ["--json", str(reports), "--error-exitcode", "7", str(script), "--epochs", "3"]
    finished = run_python("-m", "torch_mtia.sanitize", *options)
    assert finished.returncode == 7
    assert "['--epochs', '3'] __main__" in finished.stdout
    assert "Uninitialized: work reads memory" in finished.stderr
    assert "torch_mtia sanitizer: 1 report\n" in finished.stderr
    assert json.loads(reports.read_text())["access"]["operator"] == "aten::add"


def test_the_environment_asks_for_it(run_script: RunScript) -> None:
    finished = run_script(SCRIPT, TORCH_MTIA_SANITIZE="streams,memory")
    assert finished.stderr == "torch_mtia sanitizer: no reports\n"
    finished = run_script(SCRIPT, TORCH_MTIA_SANITIZE="init")
    assert "torch_mtia sanitizer: 1 report\n" in finished.stderr


PYTEST = ("-m", "pytest", "-q", "-p", "torch_mtia.sanitizer.pytest_plugin", "-p", "no:cacheprovider")


def test_a_pytest_plugin_makes_tests_fail(run_python: RunPython, tmp_path: Path) -> None:
    test = tmp_path / "test_example.py"
    test.write_text(
        "import torch\n"
        "def test_right():\n    torch.zeros(3, device='mtia') + 1\n"
        "def test_wrong():\n    torch.empty(3, device='mtia') + 1\n"
    )
    finished = run_python(*PYTEST, "--sanitize-device", "init", str(test))
    assert "1 failed, 1 passed" in finished.stdout
    assert "test_example.py:5 in test_wrong" in finished.stdout


FREED_EARLY = """
import torch
side = torch.Stream("mtia")
def test_wrong():
    x = torch.ones(1 << 20, device="mtia")
    side.wait_stream(torch.mtia.current_stream())
    with side:
        y = x.exp()
def test_right():
    torch.zeros(1 << 20, device="mtia")
def test_wrong_again():
    test_wrong()
    test_right()
"""


def test_no_test_fails_for_what_another_one_has_left_behind(run_python: RunPython, tmp_path: Path) -> None:
    test = tmp_path / "test_example.py"
    test.write_text(FREED_EARLY)
    finished = run_python(*PYTEST, "--sanitize-device", "streams", str(test))
    assert "1 failed, 2 passed" in finished.stdout
    assert "FAILED test_example.py::test_wrong_again" in finished.stdout


LEAKING = """
import torch
x, outputs = torch.ones(1000, device="mtia"), []
for _ in range(30):
    x = x + 1
    outputs.append(x * 2)
"""


@pytest.mark.wide
def test_leaks_are_looked_for_when_a_script_ends(run_script: RunScript, run_python: RunPython, tmp_path: Path) -> None:
    finished = run_script(LEAKING, TORCH_MTIA_SANITIZE="memory")
    assert "Leak: the same lines keep allocating memory" in finished.stderr
    assert "torch_mtia sanitizer: 1 report\n" in finished.stderr
    script = tmp_path / "leaking.py"
    script.write_text(LEAKING)
    options = ["--checks", "memory", str(script)]
    finished = run_python("-m", "torch_mtia.sanitize", *options)
    assert finished.returncode == 1
    assert "28 blocks, 114688 bytes in total, allocated at" in finished.stderr


SUPPRESSIONS = """\
# kind       operator    file:function
uninitialized aten::add  */faulty.py:*   # a test of suppressions

race          *          *:*             # there is none
"""


@pytest.mark.wide
def test_a_file_names_reports_that_are_left_out_and_why(run_python: RunPython, tmp_path: Path) -> None:
    script, file = tmp_path / "faulty.py", tmp_path / "suppressions.txt"
    script.write_text(SCRIPT)
    file.write_text(SUPPRESSIONS)
    options = ["--suppressions", str(file), str(script)]
    finished = run_python("-m", "torch_mtia.sanitize", *options)
    assert finished.returncode == 0
    assert finished.stderr.splitlines() == [
        f"torch_mtia sanitizer: {file}:2 suppressed 1: a test of suppressions",
        f"torch_mtia sanitizer: {file}:4 suppressed nothing",
        "torch_mtia sanitizer: no reports",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("race aten::add *:*", "suppressions.txt:1: give the reason after a #"),
        ("race aten::add  # no place", "suppressions.txt:1: expected a kind, an operator and a file:function"),
    ],
)
def test_a_suppression_without_a_reason_is_an_error(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "suppressions.txt"
    file.write_text(line)
    with pytest.raises(ValueError, match=message):
        sanitizer.suppress(file)


def test_a_place_is_the_absolute_path_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A script that is started as `python prog.py` is called by its bare name."""
    file = tmp_path / "suppressions.txt"
    file.write_text("uninitialized aten::add */prog.py:* # a test\nuninitialized aten::mul prog.py:* # a test\n")
    monkeypatch.setattr(sanitizer, "_suppressions", [])
    sanitizer.suppress(file)
    with sanitizer.enabled("init"):
        exec(compile("x = torch.empty(3, device='mtia')\nx + 1\nx * 1", "prog.py", "exec"), {"torch": torch})
    assert not sanitizer.reports()


def test_methods_of_other_libraries_stay_and_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def mine(tensor: torch.Tensor) -> object:
        calls.append("mine")
        return torch._C.TensorBase.numpy(tensor)

    def theirs(tensor: torch.Tensor) -> object:
        calls.append("theirs")
        return watched(tensor)

    inherited = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "numpy", mine)
    with sanitizer.enabled("streams"):
        torch.ones(3).numpy()
        watched = torch.Tensor.tolist
        monkeypatch.setattr(torch.Tensor, "tolist", theirs)  # while it is watched
    assert torch.Tensor.__dict__["numpy"] is mine
    assert torch.Tensor.__dict__["tolist"] is theirs
    assert torch.ones(1).tolist() == [1]
    assert calls == ["mine", "theirs"]
    monkeypatch.undo()
    del torch.Tensor.tolist
    assert torch.Tensor.tolist is inherited


def test_what_pytorch_does_on_purpose_is_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    text = "def _forward_metadata_inference():\n    torch.empty(3, device='mtia') + 1\n_forward_metadata_inference()\n"
    for file, expected in (("/x/torch/distributed/pipelining/stage.py", 0), ("/x/stage.py", 1)):
        with sanitizer.enabled("init"):
            exec(compile(text, file, "exec"), {"torch": torch})
        assert len(sanitizer.reports()) == expected
        sanitizer.print_reports()
        is_left_out = "suppressed 1: only the shapes of it are used" in capsys.readouterr().err
        assert is_left_out == (not expected)
        sanitizer.reports().clear()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("line", "status"), [("x + 1", 1), ("x.zero_()", 3)])
def test_a_script_that_ends_itself_has_the_status_of_its_reports(
    run_python: RunPython, tmp_path: Path, line: str, status: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys, torch\nx = torch.empty(10, device='mtia')\n{line}\nsys.exit(3)\n")
    finished = run_python("-m", "torch_mtia.sanitize", str(script))
    assert finished.returncode == status


PARENT = """
import multiprocessing, sys
import torch
def faulty():
    torch.empty(10, device="mtia") + 1
if __name__ == "__main__":
    processes = [multiprocessing.get_context(way).Process(target=faulty) for way in ("spawn", "fork")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""


@pytest.mark.wide
def test_processes_that_a_script_starts_are_watched_too(run_python: RunPython, tmp_path: Path) -> None:
    script, file = tmp_path / "parent.py", tmp_path / "reports.jsonl"
    script.write_text(PARENT)
    options = ["--json", str(file), "--error-exitcode", "7", str(script)]
    finished = run_python("-m", "torch_mtia.sanitize", *options)
    assert finished.returncode == 7, finished.stderr
    assert finished.stderr.count("Uninitialized: work reads memory") == 2
    reports = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({report["process"] for report in reports}) == 2
    assert {report["rank"] for report in reports} == {None}


@pytest.mark.wide
def test_a_test_fails_for_what_another_process_has_found(run_python: RunPython, tmp_path: Path) -> None:
    test = tmp_path / "test_example.py"
    test.write_text(
        "import subprocess, sys\n"
        "SCRIPT = 'import torch; torch.empty(3, device=\"mtia\") + 1'\n"
        "def test_wrong():\n    subprocess.run([sys.executable, '-c', SCRIPT], check=True)\n"
    )
    finished = run_python(*PYTEST, "--sanitize-device", "init", str(test))
    assert "1 failed" in finished.stdout
    assert "Uninitialized: work reads memory" in finished.stdout


SHAPES = """
x = torch.zeros(3, 5000, device="mtia")
for column in range(5000):
    x[:, column].add_(1)
"""


def test_it_says_what_it_has_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    assert not reports_of(SHAPES)
    sanitizer.print_reports()
    assert re.search(r"not checked: races with [1-9]\d* of the work items", capsys.readouterr().err)
    with sanitizer.enabled():
        pass
    sanitizer.print_reports()
    assert "not checked" not in capsys.readouterr().err


def test_it_says_what_it_cannot_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"scale": 3, "shift": 5, sanitizer.HOST_FUNCTION: 7}
    monkeypatch.setattr(torch_mtia._C, "_sanitizer_unlisted", lambda: counts)
    sanitizer.print_reports()
    assert capsys.readouterr().err.splitlines() == [
        "torch_mtia sanitizer: not checked: shift (5 times), scale (3 times), compiled or captured before the "
        "sanitizer began, or of a driver or an extension that does not list its accesses",
        "torch_mtia sanitizer: no reports",
    ]
