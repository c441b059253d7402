"""The sanitizer follows collectives and messages, and every process of a job says what it found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from sanitizer import collectives
from sanitizer.corpus import Program

from torch_mtia import sanitizer
from torch_mtia.ranks import Ranks, StartRanks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunPython

RANKS = 2
PROGRAMS = [*collectives.RACES, *collectives.UNINITIALIZED]


@pytest.fixture(scope="module", params=["memory", "network"])
def ranks(request: pytest.FixtureRequest, start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia", environ={"TORCH_MTIA_MACHINE": {"memory": "", "network": "%p"}[request.param]})


def found_by(rank: int, text: str) -> list[sanitizer.Report]:
    names = {
        "torch": torch,
        "dist": dist,
        "rank": rank,
        "main": torch.mtia.current_stream(),
        "side": torch.Stream("mtia"),
    }
    torch.mtia.synchronize()
    sanitizer.reports().clear()
    with sanitizer.enabled():
        exec(compile(text, "program.py", "exec"), names)
    torch.mtia.synchronize()
    found = list(sanitizer.reports())
    sanitizer.reports().clear()
    return found


@pytest.mark.sampled(7)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_faults_are_found(ranks: Ranks, program: Program) -> None:
    found = [report for each in ranks.run(found_by, program.faulty) for report in each]
    assert {report.kind for report in found} == {program.kind}, "\n\n".join(map(str, found))
    accesses = [access for access in (found[0].access, found[0].earlier) if access is not None]
    assert tuple(access.operator for access in accesses) == program.operators
    assert any(frame.file == "program.py" for frame in found[0].access.frames)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_what_mends_them_is_not_reported(ranks: Ranks, program: Program) -> None:
    found = [report for each in ranks.run(found_by, program.mended) for report in each]
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", collectives.RIGHT)
def test_right_programs_are_not_reported(ranks: Ranks, name: str) -> None:
    found = [report for each in ranks.run(found_by, collectives.RIGHT[name]) for report in each]
    assert not found, "\n\n".join(map(str, found))


JOB = """
import os
import torch
import torch.distributed as dist
dist.init_process_group()
x = torch.ones(1000, device="mtia")
work = dist.all_reduce(x, async_op=True)
if dist.get_rank() == 1:
    y = x + 1
work.wait()
dist.destroy_process_group()
"""


@pytest.mark.wide
def test_ranks_of_a_job_append_their_reports_to_one_file(run_python: RunPython, tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "reports.jsonl"
    script.write_text(JOB)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    options = ["-m", "torch_mtia.sanitize", "--json", str(file), str(script)]
    finished = run_python(*torchrun, *options)
    assert finished.returncode != 0
    assert "torch_mtia sanitizer, rank 1: 1 report" in finished.stderr
    (report,) = map(json.loads, file.read_text().splitlines())
    assert (report["kind"], report["rank"]) == ("race", 1)
    assert "call `work.wait()` in the default stream of device" in report["remedy"]
