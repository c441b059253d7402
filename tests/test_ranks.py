"""torch_mtia.ranks, and its fixture, as the tests of other projects use them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from torch_mtia.ranks import RankError, Ranks, StartRanks


def total(rank: int) -> float:
    x = torch.full((4,), rank + 1.0, device=torch.accelerator.current_accelerator())
    dist.all_reduce(x)
    return float(x[0])


def total_of_cpu(rank: int) -> float:
    x = torch.full((4,), rank + 1.0)
    dist.all_reduce(x)
    return float(x[0])


def test_each_rank_returns_its_result(start_ranks: StartRanks) -> None:
    assert start_ranks(2).run(total) == [3, 3]


def test_the_same_arguments_give_the_same_processes(start_ranks: StartRanks) -> None:
    assert start_ranks(2) is start_ranks(2)
    assert start_ranks(2) is not start_ranks(1, "cpu")


def fails_on_one(rank: int) -> None:
    if rank == 1:
        raise ValueError("one rank alone")
    dist.barrier()


def test_an_exception_names_its_rank_and_the_next_test_has_ranks(start_ranks: StartRanks) -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1: .*in fails_on_one.*ValueError: one rank alone"):
        start_ranks(2, timeout=5).run(fails_on_one)
    assert start_ranks(2, timeout=5).run(total) == [3, 3]


def cannot_be_pickled(rank: int) -> object:
    return (lambda: None) if rank == 1 else rank


def cannot_be_received(rank: int) -> object:
    return Refused() if rank == 1 else "stale"


class Refused:
    """Raises in the process that receives it, as a tensor of a device does that it lacks."""

    def __reduce__(self) -> tuple[object, ...]:
        return refuse, (os.getpid(),)


def refuse(sender: int) -> None:
    raise LookupError(f"not here, but in {sender}")


def exits(rank: int) -> None:
    if rank == 1:
        os._exit(3)


def test_a_result_that_cannot_be_pickled_is_an_error_of_its_rank() -> None:
    with Ranks(2, "cpu") as ranks:
        with pytest.raises(RankError, match=r"(?s)rank 1: .*pickle"):
            ranks.run(cannot_be_pickled)
        assert ranks.run(total_of_cpu) == [3, 3]


def test_no_answer_is_left_for_the_next_call() -> None:
    with Ranks(3, "cpu") as ranks:
        with pytest.raises(LookupError, match="not here"):
            ranks.run(cannot_be_received)
        with pytest.raises(RankError, match="have ended"):
            ranks.run(total_of_cpu)


def test_a_rank_that_exits_is_named_with_its_exit_code() -> None:
    with Ranks(2, "cpu") as ranks, pytest.raises(RankError, match=r"(?s)no answer of rank 1.*rank 1 .*exit code 3"):
        ranks.run(exits)


def variable(_rank: int) -> str:
    return os.environ["WHO"]


def test_variables_are_those_of_all_ranks_or_of_each() -> None:
    with Ranks(1, "cpu", environ={"WHO": "all"}) as ranks:
        assert ranks.run(variable) == ["all"]
    with Ranks(2, "cpu", environ=[{"WHO": "a"}, {"WHO": "b"}]) as ranks:
        assert ranks.run(variable) == ["a", "b"]


@pytest.mark.slow
def test_a_project_loads_the_fixture_by_option(tmp_path: Path) -> None:
    """A function that ranks cannot import is an error that says so."""
    (tmp_path / "test_sums.py").write_text(
        textwrap.dedent(
            """
            import sys
            import types

            import pytest
            import torch.distributed as dist

            from torch_mtia.ranks import RankError


            def backend(rank: int) -> str:
                return dist.get_backend()


            def test_on_the_cpu(start_ranks) -> None:
                assert start_ranks(2, "cpu").run(backend) == ["gloo", "gloo"]


            def test_a_function_without_a_module(start_ranks) -> None:
                backend.__module__ = "nowhere"
                sys.modules["nowhere"] = types.SimpleNamespace(backend=backend)
                with pytest.raises(RankError, match="No module named 'nowhere'"):
                    start_ranks(2, "cpu").run(backend)
            """
        )
    )
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "torch_mtia.ranks.pytest_plugin", "test_sums.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "2 passed" in finished.stdout, finished.stdout + finished.stderr


def tensor_on_the_device(rank: int) -> dict[str, torch.Tensor]:
    return {"total": torch.full((2,), rank, device=torch.accelerator.current_accelerator())}


def test_a_result_on_a_device_is_an_error_of_its_rank(start_ranks: StartRanks) -> None:
    with pytest.raises(
        RankError, match=r"rank 1: (?s:.*)TypeError: the result has a tensor on \w+:1: return `tensor.cpu"
    ):
        start_ranks(2).run(tensor_on_the_device)
    assert start_ranks(2).run(total) == [3, 3]


def test_no_ranks_and_the_wrong_number_of_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="size is 0: it must be at least 1"):
        Ranks(0, "cpu")
    with pytest.raises(ValueError, match="environ has 2 entries for 3 ranks"):
        Ranks(3, "cpu", environ=[{}, {}])
