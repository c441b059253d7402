"""The conformance suite sees what is wrong with a device: one planted fault at a time, each of which must be reported
as what it is.

conformance_faults has faults of operators and of the device, cpp/driver_with_a_fault.cpp faults of a driver.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

import torch_mtia
from tests.conformance_command import conformance
from tests.conformance_faults import FAULTS
from torch_mtia.conformance import results as r
from torch_mtia.conformance.results import Run

HERE = Path(__file__).parent
HOST_DRIVER = Path(torch_mtia.__file__).parent / "lib" / "libmtia_host.so"
DRIVER_SOURCE = HERE / "cpp" / "driver_with_a_fault.cpp"

ERRORS_ELSEWHERE = "driver_work/a_failure_is_reported_by_no_other_stream_query_or_event"
TRACER = "driver_work/a_tracer_is_told_of_copies_and_fills_until_it_is_taken_away"

# Each fault of the driver: a test that must fail, and how.
DRIVER_FAULTS = {
    "event_does_not_wait": ("driver_work/an_event_orders_streams", "wrong"),
    "event_is_always_complete": ("driver_work/an_event_completes_behind_its_work", "wrong"),
    "event_synchronize_returns_early": ("driver_work/synchronizing_waits_for_work/event_synchronize", "wrong"),
    "event_is_recorded_nowhere": ("driver_work/an_event_completes_behind_its_work", "wrong"),
    "times_are_negative": ("driver_work/time_between_events", "wrong"),
    "stream_synchronize_returns_early": ("driver_work/synchronizing_waits_for_work/stream_synchronize", "wrong"),
    "stream_is_always_idle": ("driver_work/a_busy_stream_says_so_and_does_not_block_its_caller", "wrong"),
    "errors_are_lost": ("driver_work/a_failure_is_reported_once_and_the_stream_goes_on", "wrong"),
    "device_synchronize_returns_early": ("driver_work/synchronizing_waits_for_work/device_synchronize", "wrong"),
    "work_runs_on_another_stream": ("driver_work/streams_are_concurrent", "hang"),
    "work_runs_before_its_turn": ("driver_work/a_failure_is_reported_once_and_the_stream_goes_on", "wrong"),
    "arguments_are_not_moved": ("driver_work/argument_blocks_are_moved_and_destroyed_once", "wrong"),
    "a_copy_loses_its_last_byte": ("driver/copies_there_and_back/7", "wrong"),
    "a_fill_loses_its_last_element": ("driver/fills/3-4", "wrong"),
    "memory_is_not_freed": ("driver/memory_is_aligned_and_counted", "wrong"),
    "addresses_are_not_aligned": ("driver/memory_is_aligned_and_counted", "wrong"),
    "a_kernel_loses_its_last_program": ("driver_work/kernels_run_all_programs", "wrong"),
    "a_graph_runs_when_it_is_captured": ("driver_graphs/captured_work_runs_when_the_graph_is_launched", "wrong"),
    "a_launched_graph_does_nothing": ("driver_graphs/captured_work_runs_when_the_graph_is_launched", "wrong"),
    "the_tracer_is_forgotten": ("driver_work/a_tracer_is_told_of_work", "wrong"),
    "a_copy_within_the_device_ignores_an_offset": ("driver/copies_within_the_device_and_to_another", "wrong"),
    "a_copy_within_the_device_loses_its_end": ("driver/copies_within_the_device_and_to_another", "wrong"),
    "a_copy_to_another_device_ignores_an_offset": ("driver/copies_within_the_device_and_to_another", "wrong"),
    "a_large_copy_loses_its_end": ("driver/large_copies_and_fills", "wrong"),
    "a_fill_ignores_the_end_of_an_address": ("driver/fills_from_any_address_on/4", "wrong"),
    "a_large_fill_loses_its_end": ("driver/large_copies_and_fills", "wrong"),
    "copies_do_not_wait_for_their_turn": ("driver_work/a_copy_waits_for_its_turn", "wrong"),
    "fills_do_not_wait_for_their_turn": ("driver_work/a_fill_waits_for_its_turn", "wrong"),
    "kernels_do_not_wait_for_their_turn": ("driver_work/a_kernel_waits_for_its_turn", "wrong"),
    "graphs_do_not_wait_for_their_turn": ("driver_graphs/a_graph_waits_for_its_turn", "wrong"),
    "a_kernels_arguments_are_read_late": ("driver_work/a_kernel_waits_for_its_turn", "crash"),
    "a_kernel_in_a_graph_is_lost": ("driver_graphs/captured_kernels_run_when_the_graph_is_launched", "wrong"),
    "an_event_of_the_second_device_is_complete": ("driver_work/an_event_orders_streams_of_two_devices", "wrong"),
    "an_event_of_another_device_does_not_wait": ("driver_work/an_event_orders_streams_of_two_devices", "wrong"),
    "who_waits_waits_for_a_later_record": (
        "driver_work/who_waits_for_an_event_does_not_wait_for_its_next_record",
        "hang",
    ),
    "an_event_stands_for_its_first_record": ("driver_work/an_event_stands_for_its_last_record", "wrong"),
    "times_are_in_seconds": ("driver_work/time_between_events", "wrong"),
    "an_error_is_reported_by_another_stream": (ERRORS_ELSEWHERE, "wrong"),
    "a_query_reports_errors": (ERRORS_ELSEWHERE, "wrong"),
    "an_event_reports_errors": (ERRORS_ELSEWHERE, "wrong"),
    "streams_are_of_the_first_device": ("driver_work/wrong_launches_are_refused", "wrong"),
    "a_priority_outside_of_the_range_is_refused": ("driver_work/priorities_have_a_range", "wrong"),
    "memory_of_the_second_device_is_not_counted": ("driver/memory_is_aligned_and_counted", "wrong"),
    "twice_the_memory_is_free": ("driver/memory_that_is_used_up", "wrong"),
    "the_properties_have_twice_the_memory": ("driver/devices_describe_themselves", "wrong"),
    "addresses_are_of_the_first_device": ("driver/addresses_know_their_device", "wrong"),
    "memory_is_freed_twice": ("driver/memory_that_was_not_allocated_is_not_freed", "wrong"),
    "no_bytes_are_allocated": ("driver/no_bytes_are_refused", "wrong"),
    "memory_that_is_used_up_is_an_internal_error": ("driver/memory_that_is_used_up", "wrong"),
    "what_is_not_mapped_is_unmapped": ("driver/virtual_memory", "wrong"),
    "all_captures_have_one_number": ("driver_graphs/captures_have_different_numbers", "wrong"),
    "a_tracer_cannot_be_taken_away": (TRACER, "wrong"),
    "a_tracer_is_not_told_of_copies": (TRACER, "wrong"),
}

LIMIT = ("--time-limit", "20")  # some hang

# The others are for `make test-wide`.
BY_DEFAULT = {"a_wrong_value", "a_capability_that_vanishes"}


def some(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=[] if name in BY_DEFAULT else [pytest.mark.wide]) for name in names]


def of_device(folder: Path, tests: set[str], fault: str) -> Run:
    suites = {pattern.partition("/")[0] for pattern in tests}
    arguments = [f"--suite={suite}" for suite in sorted(suites)] + [f"--test={pattern}" for pattern in sorted(tests)]
    arguments += ["--import", "conformance_faults", "--device", "mtia", *LIMIT]
    return conformance(folder, *arguments, CONFORMANCE_FAULT=fault, PYTHONPATH=str(HERE))[0]


def failures(run: Run) -> dict[str, str]:
    """How the tests have failed that have."""
    return {result.test: r.kind_of(result) for result in run.results if result.verdict == r.FAIL}


@pytest.mark.wide
def test_a_device_without_a_fault_passes(tmp_path: Path) -> None:
    run = of_device(tmp_path, {fault.tests for fault in FAULTS.values()}, fault="")
    assert failures(run) == {}


@pytest.mark.parametrize("name", some(FAULTS))
def test_a_fault_of_the_device_is_seen(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    assert fault.kind in failures(of_device(tmp_path, {fault.tests}, name)).values()


@pytest.fixture(scope="module")
def faulty_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("faulty") / "libfaulty.so"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{HERE.parent / 'csrc'}"]
    subprocess.run(["g++", *flags, "-o", str(library), str(DRIVER_SOURCE), "-ldl"], check=True)
    return library


def of_driver(folder: Path, library: Path, tests: list[str], fault: str) -> Run:
    arguments = ["--driver", str(library), *LIMIT, *(f"--test={test}" for test in tests)]
    return conformance(folder, *arguments, MTIA_TEST_DRIVER=str(HOST_DRIVER), MTIA_TEST_FAULT=fault)[0]


def test_a_driver_without_a_fault_passes(tmp_path: Path, faulty_driver: Path) -> None:
    run = of_driver(tmp_path, faulty_driver, [test for test, _ in DRIVER_FAULTS.values()], fault="none")
    assert failures(run) == {}


@pytest.mark.wide
@pytest.mark.parametrize("name", DRIVER_FAULTS)
def test_a_fault_of_a_driver_is_seen(tmp_path: Path, faulty_driver: Path, name: str) -> None:
    test, kind = DRIVER_FAULTS[name]
    assert failures(of_driver(tmp_path, faulty_driver, [test], name)) == {test: kind}


def test_all_faults_of_drivers_are_planted() -> None:
    names = re.findall(r'^    \{"(\w+)"', DRIVER_SOURCE.read_text(), flags=re.MULTILINE)
    assert sorted(names) == sorted(["none", *DRIVER_FAULTS])


def test_the_documentation_lists_the_suites_with_faults() -> None:
    text = (HERE.parent / "docs" / "conformance.md").read_text()
    table = text.partition("| suite | injected faults")[2].partition("\n\n")[0]
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)))
    tests = [*(fault.tests for fault in FAULTS.values()), *(test for test, _ in DRIVER_FAULTS.values())]
    assert sorted(listed) == sorted({test.partition("/")[0] for test in tests})
