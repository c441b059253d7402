"""A driver that fails: whatever the function, Python raises an error that names it and the library, and nothing dies.

One process imports torch and forks a child for each case, before the device is in use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import torch_mtia
from torch_mtia.conformance.driver_api import CONSTANTS, FUNCTIONS

if TYPE_CHECKING:
    from tests.conftest import RunScript

ROOT = Path(__file__).parent.parent
HOST_DRIVER = Path(torch_mtia.__file__).parent / "lib" / "libmtia_host.so"

pytestmark = pytest.mark.in_tree("the script uses torch.mtia")

# What calls each function; `fail` makes it fail from then on.
CALLS = {
    "initialize": "fail(); torch.ones(3, device='mtia')",
    "device_count": "fail(); torch.ones(3, device='mtia')",
    "device_properties": "x; fail(); torch.mtia.get_device_properties(0)",
    "memory_allocate": "fail(); torch.ones(3, device='mtia')",
    "memory_free": "x; y = torch.empty(1 << 22, device='mtia'); del y; fail(); torch.mtia.empty_cache()",
    "memory_info": "x; fail(); torch.accelerator.get_memory_info()",
    "memory_host_offset": "fail(); torch.ones(3, device='mtia')",
    "memory_copy": "x; fail(); x.cpu()",
    "stream_create": "fail(); x",
    "stream_query": "s = torch.mtia.Stream(); fail(); s.query()",
    "stream_synchronize": "x; fail(); torch.mtia.synchronize()",
    "stream_wait_event": "e = torch.mtia.Event(); e.record(); s = torch.mtia.Stream(); fail(); s.wait_event(e)",
    "stream_launch": "x; fail(); x + 1",
    "event_create": "x; fail(); torch.mtia.Event().record()",
    "event_record": "e = torch.mtia.Event(); e.record(); fail(); e.record()",
    "event_query": "e = torch.mtia.Event(); e.record(); fail(); e.query()",
    "event_synchronize": "e = torch.mtia.Event(); long_work(); e.record(); fail(); e.synchronize()",
    "event_elapsed_time": "a, b = events(); fail(); a.elapsed_time(b)",
    "module_load": "x; fail(); kernel(x)",
    "module_get_function": "x; fail(); kernel(x)",
    "stream_launch_kernel": "kernel(x); fail(); kernel(x)",
    "stream_begin_capture": "x; fail(); capture()",
    "stream_end_capture": "x; fail(); capture()",
    "stream_capture_id": "x; fail(); capture()",
    "graph_num_nodes": "g = recorded(); fail(); g.debug_dump('/dev/null')",
    "graph_node": "g = recorded(); fail(); g.debug_dump('/dev/null')",
    "graph_instantiate": "g = capture(keep_graph=True); fail(); g.instantiate()",
    "graph_launch": "g = capture(); fail(); g.replay()",
    "memory_map_shared": "x; fail(); symmetric_memory.empty(3, device='mtia:0')",
}
# With memory that is mapped into reservations.
EXPANDABLE = {
    "memory_reserve": "fail(); torch.empty(1 << 24, device='mtia')",
    "memory_map": "fail(); torch.empty(1 << 24, device='mtia')",
    "memory_unmap": "y = torch.empty(1 << 24, device='mtia'); del y; fail(); torch.mtia.empty_cache()",
}
WITHOUT_HOST_VIEW = {
    "memory_fill": "x; fail(); torch.zeros(3, device='mtia')",
    "memory_copy": "x; fail(); x.cpu()",
    "memory_allocate": "fail(); torch.ones(3, device='mtia')",
    "stream_synchronize": "x; fail(); x.cumsum(0)",
}
# Where nothing is lost but what the function would have given back, the program goes on.
ENDINGS = {
    "event_destroy": "e = torch.mtia.Event(); e.record(); fail(); del e",
    "module_unload": "kernel(x); fail(); gc.collect()",
    "graph_destroy": "g = capture(); fail(); del g",
    "graph_exec_destroy": "g = capture(); g.replay(); torch.mtia.synchronize(); fail(); del g",
    "set_tracer": "x; fail(); profile()",
}
# Of these a failure leaves something behind: the number of devices is asked for once, a capture goes on.
FATAL = {"device_count", "stream_end_capture"}
# What the package does not call (see the header), and what may fail without harm: an address whose device cannot be
# told is not the device's.
UNUSED = {"device_synchronize", "stream_destroy", "stream_priority_range", "last_error_message"}
HARMLESS = {"memory_device", "memory_release"}
NONSENSE = {
    "device_properties": ("x; fail(0); torch.mtia.get_device_properties(0)", "-1 multiprocessors"),
    "memory_info": ("x; fail(0); torch.accelerator.get_memory_info()", "are free"),
    "memory_allocate": ("fail(0); torch.ones(3, device='mtia')", "address 0"),
}

RUNNER = textwrap.dedent("""
    import ctypes, gc, json, os, sys, traceback, warnings
    import torch, torch_mtia
    from torch.distributed import _symmetric_memory as symmetric_memory

    faulty = ctypes.CDLL(os.environ["TORCH_MTIA_RUNTIME"])

    class Lazy(dict):
        def __missing__(self, name):
            if name != "x":
                raise KeyError(name)
            self[name] = torch.ones(3, device="mtia")
            torch.mtia.synchronize()
            return self[name]

    def long_work():
        y = torch.ones(2048, 2048, device="mtia")
        for _ in range(4):
            y = y @ y

    def events():
        made = [torch.mtia.Event(enable_timing=True) for _ in range(2)]
        for event in made:
            event.record()
        torch.mtia.synchronize()
        return made

    def capture(**options):
        graph = torch.mtia.MTIAGraph(**options)
        y = torch.ones(3, device="mtia")
        with torch.mtia.graph(graph):
            y + 1
        return graph

    def recorded():
        graph = torch.accelerator.Graph()
        graph.enable_debug_mode()
        y = torch.ones(3, device="mtia")
        with torch.Stream("mtia"), graph:
            y + 1
        return graph

    def kernel(x):
        from triton_vector_add import add
        return add(x, x)

    def profile():
        with torch.profiler.profile():
            torch.ones(3, device="mtia") + 1

    def run(case):
        names = Lazy(globals())
        faults = []
        names["fail"] = lambda status=case["status"]: faulty.faulty_set(case["function"].encode(), status)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                exec(case["code"], names)
            said = ["no error", *(str(w.message) for w in caught)]
        except Exception as error:
            said = [f"{type(error).__name__}: {error}", *(str(w.message) for w in caught)]
            error.__traceback__ = None
            del error
        faulty.faulty_set(b"", 0)
        if case["recovers"]:  # the device is as usable as before, and nothing is left of the call that failed
            x = names["x"]
            names.clear()
            gc.collect()
            assert (x * 2).tolist() == [2, 2, 2]
            del x
            torch.mtia.synchronize()
            gc.collect()
            torch.mtia.empty_cache()
            assert torch.mtia.memory_allocated() == 0, torch.mtia.memory_stats()
        print(json.dumps(said), flush=True)

    sys.path.insert(0, os.environ["EXAMPLES"])
    for case in json.loads(os.environ["CASES"]):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 1)
            run(case)
            sys.exit(0)  # in full, with all that is destroyed at the end
        os.close(write)
        text = open(read).read()
        print(json.dumps([os.waitpid(child, 0)[1], text]), flush=True)
""")


@pytest.fixture(scope="session")
def faulty_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("faulty") / "libfaulty.so"
    source = ROOT / "tests" / "cpp" / "faulty_driver.cpp"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["g++", *flags, "-o", str(library), str(source), "-ldl"], check=True)
    return library


@pytest.fixture
def run_cases(run_script: RunScript, faulty_driver: Path) -> Any:
    """Runs cases and returns what each raised and warned."""

    def run(cases: list[dict[str, Any]], defect: str = "", **environment: str) -> list[list[str]]:
        finished = run_script(
            RUNNER,
            timeout=300,
            TORCH_MTIA_RUNTIME=str(faulty_driver),
            MTIA_TEST_DRIVER=str(HOST_DRIVER),
            MTIA_TEST_DEFECT=defect,
            EXAMPLES=str(ROOT / "examples"),
            CASES=json.dumps(cases),
            **environment,
        )
        said = []
        for case, line in zip(cases, finished.output().splitlines(), strict=True):
            status, text = json.loads(line)
            assert status == 0, f"{case} ended with status {status}:\n{text}\n{finished.stderr}"
            said.append(json.loads(text.splitlines()[-1]))
        return said

    return run


def case(function: str, code: str, status: int = CONSTANTS["MTIA_ERROR_INTERNAL"], *, recovers: bool) -> dict[str, Any]:
    return {"function": function, "code": code, "status": status, "recovers": recovers}


def cases(calls: dict[str, str]) -> list[dict[str, Any]]:
    return [case(function, code, recovers=function not in FATAL) for function, code in calls.items()]


def check_named(said: list[str], function: str, library: Path) -> None:
    assert said[0].startswith(("RuntimeError", "AcceleratorError")), said
    assert any(f"{function} of the driver '{library}'" in text for text in said), said
    assert any("the injected fault" in text for text in said), said


def test_there_is_a_case_for_every_function() -> None:
    assert (
        CALLS.keys() | EXPANDABLE.keys() | WITHOUT_HOST_VIEW.keys() | ENDINGS.keys() | UNUSED | HARMLESS
        == FUNCTIONS.keys()
    )


@pytest.mark.wide
def test_every_function_that_fails_is_named(run_cases: Any, faulty_driver: Path) -> None:
    for said, function in zip(run_cases(cases(CALLS)), CALLS, strict=True):
        check_named(said, function, faulty_driver)


@pytest.mark.wide
def test_mapped_memory_that_fails_is_named(run_cases: Any, faulty_driver: Path) -> None:
    results = run_cases(cases(EXPANDABLE), PYTORCH_ALLOC_CONF="expandable_segments:True")
    for said, function in zip(results, EXPANDABLE, strict=True):
        check_named(said, function, faulty_driver)


def test_free_memory_stays_free_when_what_lies_behind_it_cannot_be_mapped(run_cases: Any) -> None:
    code = textwrap.dedent("""
        x
        y = torch.empty(1 << 24, dtype=torch.uint8, device="mtia")
        del y
        fail()
        try:
            torch.empty(1 << 25, dtype=torch.uint8, device="mtia")
        except RuntimeError:
            faulty.faulty_set(b"", 0)
        before = torch.accelerator.memory_reserved()
        y = torch.empty(1 << 24, dtype=torch.uint8, device="mtia")
        assert torch.accelerator.memory_reserved() == before
        del x, y
        torch.mtia.empty_cache()
        assert torch.accelerator.memory_reserved() == 0
        assert torch.accelerator.memory_stats()["inactive_split_bytes.all.current"] == 0
    """)
    results = run_cases([case("memory_map", code, recovers=True)], PYTORCH_ALLOC_CONF="expandable_segments:True")
    assert results == [["no error"]]


@pytest.mark.wide
def test_functions_that_fail_under_the_copying_fallback_are_named(run_cases: Any, faulty_driver: Path) -> None:
    results = run_cases(cases(WITHOUT_HOST_VIEW), defect="no host view")
    for said, function in zip(results, WITHOUT_HOST_VIEW, strict=True):
        check_named(said, function, faulty_driver)


@pytest.mark.wide
def test_what_fails_at_an_end_does_not_end_the_program(run_cases: Any) -> None:
    for said in run_cases([case(function, code, recovers=False) for function, code in ENDINGS.items()]):
        assert said[0] == "no error"


@pytest.mark.wide
def test_every_status_is_named(run_cases: Any) -> None:
    statuses = [name for name in CONSTANTS if name.startswith("MTIA_ERROR_") and not name.endswith("NOT_READY")]
    code = "x; fail(); torch.accelerator.get_memory_info()"
    known = [case("memory_info", code, CONSTANTS[name], recovers=False) for name in statuses]
    *results, unknown = run_cases([*known, case("memory_info", code, 4711, recovers=False)])
    for said, name in zip(results, statuses, strict=True):
        assert f"returned {name}" in said[0]
    assert "status 4711" in unknown[0]


def test_answers_that_make_no_sense_are_refused(run_cases: Any, faulty_driver: Path) -> None:
    results = run_cases([case(function, code, 0, recovers=True) for function, (code, _) in NONSENSE.items()])
    for said, (function, (_, words)) in zip(results, NONSENSE.items(), strict=True):
        assert f"{function} of the driver '{faulty_driver}'" in said[0]
        assert words in said[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("defect", "words"),
    [
        ("speaks another version", "does not speak ABI version 1"),
        ("says another version", "ABI version 7"),
        ("a table without its head", "20 bytes"),
        ("a short table", "lacks required functions: initialize"),
        ("lacks a function", "memory_copy"),
        ("lacks a function of a capability", "graph_launch"),
        ("a count that makes no sense", "-3"),
    ],
)
def test_a_table_that_is_wrong_is_refused(run_cases: Any, faulty_driver: Path, defect: str, words: str) -> None:
    (said,) = run_cases([case("", "torch.ones(3, device='mtia')", recovers=False)], defect=defect)
    assert said[0].startswith("RuntimeError")
    assert any(words in text and str(faulty_driver) in text for text in said), said


@pytest.mark.sampled(3)
@pytest.mark.parametrize("library", ["/nowhere/libdriver.so", "libm.so.6", os.devnull])
def test_a_library_that_is_no_driver_is_named(run_script: RunScript, library: str) -> None:
    finished = run_script("import torch; torch.ones(3, device='mtia')", TORCH_MTIA_RUNTIME=library)
    assert finished.returncode == 1
    assert library in finished.stderr


@pytest.mark.wide
def test_a_driver_that_hangs_at_the_start_is_named(faulty_driver: Path) -> None:
    faulty = {"TORCH_MTIA_RUNTIME": str(faulty_driver), "MTIA_TEST_DRIVER": str(HOST_DRIVER)}
    process = subprocess.Popen(
        [sys.executable, "-c", "import torch; torch.ones(3, device='mtia')"],
        env=os.environ | faulty | {"MTIA_TEST_DEFECT": "hangs"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
    finally:
        process.kill()
        process.communicate()
    assert f"still waiting for initialize of the driver '{faulty_driver}'" in said
