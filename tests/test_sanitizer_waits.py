"""What the runtime asks and waits for itself orders nothing: behind it every fault of tests/sanitizer is found, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
import triton
from sanitizer import between, captures, collectives, graphs, host, kernels, streams
from sanitizer.corpus import Program, triton_kernel

from torch_mtia import _C, sanitizer
from torch_mtia.ranks import Ranks, StartRanks

if TYPE_CHECKING:
    from tests.conftest import RunScript

RANKS = 2


def races(programs: list[Program]) -> list[Program]:
    return [program for program in programs if program.kind in ("race", "freed too early")]


PROGRAMS = races([*streams.RACES, *streams.FREED, *host.RACES, *graphs.RACES, *kernels.PROGRAMS])
IN_CAPTURES = races([*captures.CAPTURED, *captures.KERNELS])
OF_RANKS = races(collectives.RACES)


def name(each: object) -> str:
    return each.name if isinstance(each, Program) else getattr(each, "__name__", str(each))


def found_in(text: str, **more: object) -> list[sanitizer.Report]:
    streams = (torch.mtia.current_stream(), torch.Stream("mtia"), torch.Stream("mtia"))
    names = {"torch": torch, "triton": triton, "triton_kernel": triton_kernel, "dist": dist, "streams": streams}
    names |= dict(zip(("main", "side", "third"), streams, strict=True)) | more
    torch.mtia.synchronize()
    torch.accelerator.empty_cache()  # what an earlier test has left there could meet requests that are to reach a limit
    sanitizer.reports().clear()
    with sanitizer.enabled("streams"):
        exec(compile(text, "program.py", "exec"), names)
    torch.mtia.synchronize()
    found = list(sanitizer.reports())
    sanitizer.reports().clear()
    return found


def with_line(program: Program, line: str) -> tuple[str, str]:
    """The faulty program and the mended one, each with a line between the two accesses."""
    lines = program.text.splitlines()
    (indent,) = {each[: len(each) - len(each.lstrip())] for each in lines if each.strip() == "MEND"}
    mended = "\n".join(f"{indent}{line}\n{each}" if each.strip() == "MEND" else each for each in lines)
    return program.text.replace("MEND", line), mended.replace("MEND", program.mend)


def check(program: Program, faulty: list[sanitizer.Report], mended: list[sanitizer.Report]) -> None:
    assert {report.kind for report in faulty} == {program.kind}, "\n\n".join(map(str, faulty)) or "no report"
    accesses = [access for access in (faulty[0].access, faulty[0].earlier) if access is not None]
    assert tuple(access.operator for access in accesses) == program.operators
    assert not mended, "\n\n".join(map(str, mended))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("program", PROGRAMS, ids=name)
@pytest.mark.parametrize("line", between.LOCAL, ids=name)
def test_races_are_found_behind_what_the_allocators_ask(line: between.Between, program: Program) -> None:
    texts = with_line(program, "between(streams)")
    check(program, *(found_in(text, between=line) for text in texts))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("program", IN_CAPTURES, ids=name)
@pytest.mark.parametrize("line", between.IN_CAPTURES, ids=name)
def test_races_of_captures_are_found_behind_what_the_allocators_ask(line: between.Between, program: Program) -> None:
    texts = with_line(program, "between((main, side, third))")
    check(program, *(found_in(text, between=line) for text in texts))


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia")


def found_by(rank: int, text: str, line: between.Between) -> list[sanitizer.Report]:
    return found_in(text, rank=rank, between=line)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("line", "program"),
    [
        (line, program)
        for line in (between.reduce_and_drop, between.free_recorded, between.free_pinned)
        for program in OF_RANKS
        if line is not between.reduce_and_drop or "\nMEND\n" in program.text  # on all ranks
    ],
    ids=name,
)
def test_races_with_collectives_are_found_behind_what_the_runtime_asks(
    ranks: Ranks, line: between.Between, program: Program
) -> None:
    texts = with_line(program, "between((main, side))")
    check(program, *([each for found in ranks.run(found_by, text, line) for each in found] for text in texts))


IDLE = "_C._wait_unobserved(-1)"
# Memory that is used again, and that its last user is done with.
AGAIN = {
    "recorded memory": f"""
addresses = set()
for _ in range(3):
    x = torch.ones(1 << 20, device="mtia")
    addresses.add(x.data_ptr())
    side.wait_stream(main)
    with side:
        y = x.exp()
    x.record_stream(side)
    del x
    {IDLE}
assert len(addresses) == 1
""",
    "pinned memory": f"""
addresses = set()
for i in range(3):
    for stream in streams:
        with stream:
            host = torch.full((1000,), float(i), pin_memory=True)
            x = host.to("mtia", non_blocking=True)
            addresses.add(host.data_ptr())
            del host
            {IDLE}
assert len(addresses) == 1
""",
    "pinned memory that was copied to": f"""
x, addresses = torch.ones(1000, device="mtia"), set()
for i in range(3):
    host = torch.zeros(1000, pin_memory=True)
    host.copy_(x, non_blocking=True)
    addresses.add(host.data_ptr())
    del host
    {IDLE}
assert len(addresses) == 1
""",
    "memory that the driver got back": """
x = torch.ones(32 << 20, dtype=torch.uint8, device="mtia")
address = x.data_ptr()
del x
with between.at_most_more(16 << 20), side:
    y = torch.zeros(40 << 20, dtype=torch.uint8, device="mtia")
torch.accelerator.empty_cache()
with third:
    z = [torch.zeros(32 << 20, dtype=torch.uint8, device="mtia") for _ in range(4)]
assert any(each.data_ptr() < address + (32 << 20) and address < each.data_ptr() + each.nbytes for each in (y, *z))
""",
    "memory of a graph": f"""
x = torch.ones(1 << 20, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x * 2
address = y.data_ptr()
side.wait_stream(main)
with side:
    graph.replay()
{IDLE}
del graph, y
torch.accelerator.empty_cache()
z = [torch.zeros(1 << 20, device="mtia") for _ in range(8)]
assert address in [each.data_ptr() for each in z]
""",
    "memory that all streams have used": """
x = torch.ones(1 << 20, device="mtia")
for stream in streams:
    stream.wait_stream(main)
    with stream:
        y = x.exp()
    x.record_stream(stream)
del x
_C._wait_unobserved(-1)
z = torch.zeros(1 << 20, device="mtia")
""",
}


@pytest.mark.parametrize("text", AGAIN.values(), ids=AGAIN)
def test_memory_that_is_used_again_is_not_reported(text: str) -> None:
    found = found_in(text, between=between, _C=_C)
    assert not found, "\n\n".join(map(str, found))


OF_OTHERS = """
x = torch.ones(1 << 20, device="mtia")
del x
z = torch.empty(1 << 20, device="mtia")
with side:
    z.fill_(1)
main.wait_stream(side)
"""


def test_another_stream_waits_for_what_used_the_memory_before() -> None:
    """Memory is handed out in the order of its stream, and other streams know nothing of that order."""
    (report,) = found_in(OF_OTHERS)
    assert report.kind == "freed too early"
    assert report.earlier is not None
    assert (report.access.operator, report.earlier.operator) == ("aten::fill_", "aten::fill_")


QUERIES = """
import threading
import torch_mtia
x, go = torch.zeros(1000, device="mtia"), threading.Event()
torch_mtia.launch_host_function(main, lambda: go.wait(60))
x.add_(1)
event = main.record_event()
answers = [event.query(), main.query()]
if not is_late:
    go.set()
    _C._wait_unobserved(-1)
    answers.append(getattr(event if of == "event" else main, "query")())
with side:
    x.mul_(2)
go.set()
main.wait_stream(side)
"""


@pytest.mark.parametrize("of", ["event", "stream"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_query_is_a_wait_if_it_is_true(is_late: bool, of: str) -> None:
    found = found_in(QUERIES, is_late=is_late, of=of, _C=_C)
    assert len(found) == is_late, "\n\n".join(map(str, found))


# What runs in the child has run before: a fork while another thread initializes a static variable, as the first call of
# an operator does, leaves it locked in the child, with or without the device.
FORKS = """
import faulthandler, os, threading
import torch
from torch_mtia import sanitizer

def add(weight):
    return torch.ones(100, device="mtia") + 1, (weight * 2).sum()

with sanitizer.enabled():
    is_done, kept = False, torch.ones(1000, device="mtia")
    def work():
        weight = torch.ones(100, requires_grad=True)
        while not is_done:
            add(weight)[1].backward()
    add(torch.ones(3, requires_grad=True))[1].backward()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    statuses = set()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(60, exit=True)  # ends a child that hangs
            x = torch.ones(3, requires_grad=True)
            (x * 2).sum()
            kept = None
            assert sanitizer.reports() == []
            os._exit(0)
        statuses.add(os.waitpid(child, 0)[1])
    is_done = True
    for thread in threads:
        thread.join()
print(statuses)
"""


def test_a_child_frees_what_it_inherited_while_threads_are_watched(run_script: RunScript) -> None:
    assert run_script(FORKS, timeout=300).output() == "{0}\n"


REFUSED = """
import torch_mtia
x, raised = torch.zeros(1000, device="mtia"), []
x.add_(1)
def wait():
    try:
        torch.mtia.synchronize()
    except RuntimeError:
        raised.append(True)
torch_mtia.launch_host_function(third, wait)
_C._wait_unobserved(-1)
assert raised
with side:
    x.mul_(2)
main.wait_stream(side)
"""


def test_a_wait_that_is_refused_orders_nothing() -> None:
    (report,) = found_in(REFUSED, _C=_C)
    assert report.kind == "race"
