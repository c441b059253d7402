"""What the hunts share: a failure is kept, whatever it does to its process, and is made small."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import pytest

from tools.hunts.progress import Progress
from tools.hunts.shrink import shrink
from tools.hunts.worker import Run, Worker
from tools.runtime_fuzz.order import order
from tools.runtime_fuzz.program import Action, Buffer, Program


def prepare() -> Run[str]:
    def run(program: str) -> str:
        if program == "crash":
            ctypes.string_at(0)
        if program == "hang":
            time.sleep(600)
        if program == "raise":
            raise ValueError("as asked")
        return program.removeprefix("fine")

    return run


def test_a_worker_says_how_a_program_ended_and_goes_on() -> None:
    worker = Worker[str](prepare, {}, limit=20)
    for program, kind, detail in [
        ("fine", "same", ""),
        ("wrong", "different", "wrong"),
        ("raise", "error", "ValueError: as asked"),
        ("crash", "crash", "Segmentation fault"),
        ("fine", "same", ""),
    ]:
        outcome = worker.run(program)
        assert outcome.kind == kind
        assert detail in outcome.detail
    worker.close()


def test_a_worker_that_hangs_is_replaced_and_says_where_it_was() -> None:
    worker = Worker[str](prepare, {}, limit=5)
    outcome = worker.run("hang")
    assert outcome.kind == "hang"
    assert "in run" in outcome.detail
    worker.close()


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
