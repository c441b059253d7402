"""PYTORCH_ALLOC_CONF and the memory fraction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import torch_mtia

if TYPE_CHECKING:
    from tests.conftest import RunScript
    from tests.interpreter import Finished

MIB = 1 << 20


def test_statistics_tell_small_blocks_from_large_ones() -> None:
    torch.empty(1, device="mtia")
    before = torch.accelerator.memory_stats()
    small, large = (torch.empty(size, dtype=torch.uint8, device="mtia") for size in (1000, 3 * MIB))
    after = torch.accelerator.memory_stats()
    for pool, size in (("small_pool", 1024), ("large_pool", 3 * MIB), ("all", 1024 + 3 * MIB)):
        name = f"allocated_bytes.{pool}.current"
        assert after[name] - before[name] == size
    del small, large


def test_a_memory_fraction_limits_what_is_held(run_script: RunScript) -> None:
    run_script(
        """
        import torch, torch_mtia
        def megabytes(size):
            return torch.empty(size << 20, dtype=torch.uint8, device="mtia")
        assert torch_mtia.memory.get_per_process_memory_fraction() == 1.0
        torch_mtia.memory.set_per_process_memory_fraction(0.25)
        assert torch_mtia.memory.get_per_process_memory_fraction("mtia:0") == 0.25
        x = megabytes(100)
        try:
            megabytes(60)
        except torch.OutOfMemoryError as error:
            assert "128.00 MiB allowed" in str(error), error
        else:
            raise AssertionError("more than the fraction was given out")
        del x
        megabytes(120)
        """,
        TORCH_MTIA_MEMORY="512M",
    ).output()


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_fraction_is_from_0_to_1(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction must be from 0 to 1"):
        torch_mtia.memory.set_per_process_memory_fraction(fraction)


def test_a_fraction_is_of_an_mtia_device() -> None:
    with pytest.raises(ValueError, match="must be an mtia device"):
        torch_mtia.memory.set_per_process_memory_fraction(0.5, "cpu")


def test_blocks_above_max_split_size_stay_whole(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        def megabytes(size):
            return torch.empty(size << 20, dtype=torch.uint8, device="mtia")
        large = megabytes(100)
        del large
        small = megabytes(30)
        assert torch.accelerator.memory_reserved() == 130 << 20
        stats = torch.accelerator.memory_stats()
        assert stats["max_split_size"] == 40 << 20, stats
        """,
        PYTORCH_ALLOC_CONF="max_split_size_mb:40",
    ).output()


@pytest.mark.wide
def test_garbage_is_collected_above_the_threshold(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        def megabytes(size):
            return torch.empty(size << 20, dtype=torch.uint8, device="mtia")
        first, second = megabytes(60), megabytes(50)
        del second
        del first
        x = megabytes(200)
        assert torch.accelerator.memory_reserved() == 260 << 20, torch.accelerator.memory_reserved()
        assert torch.accelerator.memory_stats()["num_alloc_retries"] == 0
        """,
        TORCH_MTIA_MEMORY="512M",
        PYTORCH_ALLOC_CONF="garbage_collection_threshold:0.6",
    ).output()


@pytest.mark.wide
def test_expandable_segments_serve_a_request_that_no_segment_alone_could(run_script: RunScript) -> None:
    script = """
        import torch
        def megabytes(size):
            return torch.empty(size << 20, dtype=torch.uint8, device="mtia")
        x = [megabytes(30) for _ in range(6)]
        y = torch.arange(3, device="mtia")
        x[1:5] = []
        z = megabytes(120).fill_(7)
        stats = torch.accelerator.memory_stats()
        segments = [s for s in torch.mtia.snapshot()["segments"] if s["segment_type"] == "large"]
        print(stats["reserved_bytes.large_pool.current"] >> 20, stats["num_alloc_retries"], len(segments),
              segments[0]["is_expandable"], int(z.sum() >> 20), y.tolist())
        del x, z
        torch.accelerator.empty_cache()
        print(torch.accelerator.memory_stats()["reserved_bytes.large_pool.current"])
    """
    expandable = run_script(script, PYTORCH_ALLOC_CONF="expandable_segments:True")
    assert expandable.output() == "180 0 1 True 840 [0, 1, 2]\n0\n"
    assert expandable.stderr == ""
    assert run_script(script).output() == "300 0 7 False 840 [0, 1, 2]\n0\n"


@pytest.mark.wide
def test_a_process_with_little_address_space_uses_the_device(run_script: RunScript) -> None:
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
        import torch
        x = torch.ones(30 << 20, dtype=torch.uint8, device="mtia")
        print(int(x.sum() >> 20), torch.mtia.snapshot()["segments"][0]["is_expandable"])
    """

    def run_with(memory: str) -> Finished:
        return run_script(script, PYTORCH_ALLOC_CONF="expandable_segments:True", TORCH_MTIA_MEMORY=memory)

    assert run_with("8G").output() == "30 False\n"
    assert "raise the limit (ulimit -v)" in run_with("40G").stderr
