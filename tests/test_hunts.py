"""What the hunts share: a failure is kept, whatever it does to its process, and is made small."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import pytest

from tools.hunts.progress import Progress
from tools.hunts.shrink import shrink
from tools.hunts.worker import Failure, Run, Worker, in_turn
from tools.runtime_fuzz.order import order
from tools.runtime_fuzz.program import Action, Buffer, Program


def prepare() -> Run[str, str]:
    count = 0

    def run(program: str) -> str:
        nonlocal count
        count += 1
        if program == "crash":
            ctypes.string_at(0)
        if program == "hang":
            time.sleep(600)
        if program == "raise":
            raise ValueError("as asked")
        return f"{program} {count}"

    return run


def test_programs_behind_one_that_fails_still_run_and_the_failure_is_told() -> None:
    worker = Worker[str, str](prepare, {}, limit=60)
    for program in ("one", "two", "raise", "crash", "three", "four"):
        worker.start(program)
    one, two, wrong, crashed, three, four = (worker.finish() for _ in range(6))
    worker.close()
    assert (one, two, three, four) == ("one 1", "two 2", "three 1", "four 2")
    assert isinstance(wrong, Failure)
    assert (wrong.kind, "ValueError: as asked" in wrong.detail) == ("error", True)
    assert isinstance(crashed, Failure)
    assert (crashed.kind, "Segmentation fault" in crashed.detail) == ("crash", True)


def test_a_worker_that_hangs_is_replaced_and_says_where_it_was() -> None:
    worker = Worker[str, str](prepare, {}, limit=5)
    hung = worker.run("hang")
    worker.close()
    assert isinstance(hung, Failure)
    assert (hung.kind, "in run" in hung.detail) == ("hang", True)


def test_another_process_takes_over_after_so_many_programs() -> None:
    worker = Worker[str, str](prepare, {}, limit=60, programs=2)
    results = [result for _, result in in_turn([worker], map(str, range(5)), together=3)]
    worker.close()
    assert results == ["0 1", "1 2", "2 1", "3 2", "4 1"]


@pytest.mark.parametrize("together", [1, 3])
def test_workers_take_turns_and_results_come_in_order(together: int) -> None:
    workers = [Worker[str, str](prepare, {}, limit=60) for _ in range(2)]
    results = [result for _, result in in_turn(workers, map(str, range(8)), together=together)]
    for worker in workers:
        worker.close()
    numbers = {1: (1, 1, 2, 2, 3, 3, 4, 4), 3: (1, 2, 3, 1, 2, 3, 4, 5)}
    assert results == [f"{program} {number}" for program, number in enumerate(numbers[together])]


def test_what_fails_is_shrunk_to_what_is_needed() -> None:
    parts = list(range(100))
    assert shrink(parts, lambda kept: {17, 60, 61} <= set(kept)) == [17, 60, 61]
    assert len(shrink(parts, lambda kept: len(kept) >= 3, most_trials=1000)) == 3


@pytest.mark.parametrize("seeds", [40, 30])
def test_counts_are_continued_and_belong_to_what_was_tested(tmp_path: Path, seeds: int) -> None:
    path = tmp_path / "progress.json"
    progress = Progress(path, 0, "old")
    for seed in range(seeds):
        progress.add(seed, "same", ["graph", "graph"])
    progress.save()
    assert Progress(path, 0, "old").features == {"graph": seeds}
    new = Progress(path, 0, "new")
    assert (new.next, new.outcomes.total()) == (seeds, 0)


def test_reads_of_two_threads_in_one_stream_are_both_waited_for() -> None:
    """That the second thread has waited for its own read says nothing about the read of the first."""
    memory = Buffer(device=0)
    program = Program(
        seed=0,
        devices=(0, 0),
        actions=(
            Action("factory", "t = torch.ones(9, device=devices[0])", stream=1, defines=(("t", memory),)),
            Action("operator", "u = t + 1", stream=0, reads=("t",), defines=(("u", Buffer(device=0)),)),
            Action("copy to host", "n = t.cpu()", thread=1, stream=0, reads=("t",), makes=("n",), waits=True),
            Action("in place", "t.zero_()", thread=1, stream=1, writes=("t",)),
        ),
    )
    texts = [step.text for step in order(program)]
    between = texts[texts.index("n = t.cpu()") + 1 : texts.index("t.zero_()")]
    assert any("streams[0]" in text for text in between)
