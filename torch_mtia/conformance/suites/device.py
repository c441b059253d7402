"""What a device is beside its operators: memory, streams, events, generators, copies, several devices, processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("accelerator")]

N = 1 << 16


def test_is_the_accelerator(device: torch.device) -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device(device.type)
    assert torch.accelerator.device_count() >= 1
    assert torch.accelerator.current_device_index() == 0


def test_names(device: torch.device) -> None:
    assert torch.ones(1, device=device.type).device == device
    assert torch.ones(1, device=str(device)).device == device
    assert torch.ones(1).to(device).is_cpu is False


def test_an_index_that_no_device_has_is_refused(device: torch.device) -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(1, device=f"{device.type}:{torch.accelerator.device_count()}")


# Memory --------------------------------------------------------------------------------------------------------------


def test_allocated_memory_is_counted(device: torch.device) -> None:
    before = torch.accelerator.memory_allocated()
    tensor = torch.empty(N, device=device)
    assert torch.accelerator.memory_allocated() - before >= tensor.nbytes
    del tensor
    assert torch.accelerator.memory_allocated() == before


def test_the_peak_is_kept_until_it_is_reset(device: torch.device) -> None:
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.max_memory_allocated()
    torch.empty(N, device=device)
    assert torch.accelerator.max_memory_allocated() >= before + 4 * N
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.accelerator.memory_allocated()


def test_an_emptied_cache_gives_memory_back(device: torch.device) -> None:
    torch.empty(N * 256, device=device)
    reserved = torch.accelerator.memory_reserved()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() < reserved


def test_free_and_total_memory(device: torch.device) -> None:
    free, total = torch.accelerator.get_memory_info(device)
    assert 0 < free <= total


def test_memory_that_is_not_there_raises(device: torch.device) -> None:
    _, total = torch.accelerator.get_memory_info(device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * total, dtype=torch.uint8, device=device)
    assert torch.ones(2, device=device).sum().item() == 2


# Streams and events --------------------------------------------------------------------------------------------------


def test_work_on_another_stream(device: torch.device) -> None:
    stream = torch.Stream(device)
    with stream:
        assert torch.accelerator.current_stream() == stream
        result = torch.ones(N, device=device) * 2
    stream.synchronize()
    assert stream.query()
    assert result.sum().item() == 2 * N


def test_a_stream_waits_for_another(device: torch.device) -> None:
    first, second = torch.Stream(device), torch.Stream(device)
    values = torch.zeros(N, device=device)
    torch.accelerator.synchronize()
    for _ in range(20):
        with first:
            values.add_(1)
        second.wait_stream(first)
        with second:
            values.mul_(2)
        first.wait_stream(second)
    torch.accelerator.synchronize()
    assert values.unique().tolist() == [2.0**21 - 2]


def test_events_order_streams(device: torch.device) -> None:
    stream, event = torch.Stream(device), torch.Event(device)
    with stream:
        values = torch.ones(N, device=device).cumsum(0)
        event.record()
    event.wait()
    assert values[-1].item() == N
    event.synchronize()
    assert event.query()


def test_events_measure_time(device: torch.device) -> None:
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(N, device=device).exp()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0


def test_memory_in_use_on_another_stream_is_not_given_away(device: torch.device) -> None:
    stream = torch.Stream(device)
    for value in range(20):
        tensor = torch.full((N,), float(value), device=device)
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            result = tensor * 1
        tensor.record_stream(stream)
        del tensor
        torch.full((N,), -1.0, device=device)
        stream.synchronize()
        assert result.unique().tolist() == [value]


def test_streams_of_threads_are_their_own(device: torch.device) -> None:
    found = []

    def body() -> None:
        found.append(torch.accelerator.current_stream())

    with torch.Stream(device):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    assert found == [torch.accelerator.current_stream()]


# Generators ----------------------------------------------------------------------------------------------------------


def test_a_seed_repeats_numbers(device: torch.device) -> None:
    torch.manual_seed(3)
    first = torch.rand(100, device=device)
    second = torch.rand(100, device=device)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(100, device=device), first)
    assert not torch.equal(first, second)


def test_a_generator_of_ones_own(device: torch.device) -> None:
    generators = [torch.Generator(device).manual_seed(5) for _ in range(2)]
    first, second = (torch.randn(64, device=device, generator=generator) for generator in generators)
    assert torch.equal(first, second)


def test_the_state_of_the_generator_is_restored(device: torch.device, module: Any) -> None:
    state = module.get_rng_state()
    first = torch.randn(64, device=device)
    module.set_rng_state(state)
    assert torch.equal(torch.randn(64, device=device), first)


def test_random_numbers_are_uniform(device: torch.device) -> None:
    torch.manual_seed(0)
    counts = torch.histc(torch.rand(1 << 20, device=device).cpu(), 16, 0, 1)
    # 16 bins of 65536: five standard deviations are 1240.
    assert float((counts - 65536).abs().max()) < 1240


def test_random_numbers_are_normal(device: torch.device) -> None:
    torch.manual_seed(0)
    numbers = torch.randn(1 << 20, device=device)
    assert abs(float(numbers.mean())) < 5e-3
    assert abs(float(numbers.std()) - 1) < 5e-3


# Pinned memory, copies -----------------------------------------------------------------------------------------------


def test_pinned_memory(device: torch.device) -> None:
    host = torch.arange(N).pin_memory()
    assert host.is_pinned()
    there = host.to(device, non_blocking=True)
    back = torch.empty(N, dtype=torch.int64).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(back, host)


def test_pageable_memory_is_read_before_the_copy_returns(device: torch.device) -> None:
    host = torch.ones(N)
    there = host.to(device, non_blocking=True)
    host.zero_()
    assert there.sum().item() == N


# Several devices -----------------------------------------------------------------------------------------------------


def test_guards_change_the_device_and_back(device: torch.device, second: torch.device) -> None:
    with torch.accelerator.device_index(1):
        assert torch.ones(1, device=device.type).device == second
    assert torch.accelerator.current_device_index() == 0


def test_copies_between_devices(device: torch.device, second: torch.device) -> None:
    there = torch.arange(N, device=device).to(second)
    assert there.device == second
    assert torch.equal(there.cpu(), torch.arange(N))


ON_THE_SECOND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elementwise": lambda x: x * 2 + x.exp(),
    "in place": lambda x: x.clone().mul_(3),
    "sum": lambda x: x.sum(0),
    "matmul": lambda x: x @ x.t(),
    "cat": lambda x: torch.cat([x, x]),
    "indexing": lambda x: x[[2, 0]],
    "sort": lambda x: x.sort(1).values,
    "comparison": lambda x: x > 0.5,
    "conversion": lambda x: x.to(torch.int32),
    "like": lambda x: torch.ones_like(x) + x.new_full((3, 4), 2),
    "softmax": lambda x: x.softmax(-1),
    "backward": lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0],
}


@pytest.mark.parametrize("name", ON_THE_SECOND)
def test_work_on_the_second_device(second: torch.device, name: str) -> None:
    """While the first is the current one: the results are there, and right."""
    call = ON_THE_SECOND[name]
    numbers = torch.arange(12.0).view(3, 4) / 7
    result = call(numbers.to(second))
    assert result.device == second
    torch.testing.assert_close(result.cpu(), call(numbers))


def test_tensors_on_two_devices_do_not_mix(device: torch.device, second: torch.device) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=device) + torch.ones(2, device=second)


def test_tensors_on_the_cpu_do_not_mix(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=device) + torch.ones(2)
    assert (torch.ones(2, device=device) + torch.tensor(1.0)).tolist() == [2.0, 2.0]


# Processes -----------------------------------------------------------------------------------------------------------


def _uses_device(registers: Callable[[], None], name: str, answers: Any) -> None:
    registers()
    is_bad_fork = torch.get_device_module(name)._is_in_bad_fork()
    try:
        answers.put((is_bad_fork, torch.ones(2, device=name).sum().item()))
    except RuntimeError as error:
        answers.put((is_bad_fork, str(error)))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_another_process(device: torch.device, registers: Callable[[], None], method: str) -> None:
    """A new process uses the device; a forked one, whose parent has used it, does too, or knows that it cannot and gets
    an error that says to spawn."""
    torch.ones(1, device=device)
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=_uses_device, args=(registers, str(device), answers))
    process.start()
    is_bad_fork, answer = answers.get(timeout=60)
    process.join()
    assert process.exitcode == 0
    assert not (is_bad_fork and method == "spawn")
    assert "spawn" in str(answer) if is_bad_fork else answer == 2


def test_a_forked_process_that_leaves_the_device_alone_ends(device: torch.device) -> None:
    torch.ones(1, device=device)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# Autograd ------------------------------------------------------------------------------------------------------------


def test_backward_runs_on_the_stream_of_the_forward(device: torch.device) -> None:
    weight = torch.ones(N, device=device, requires_grad=True)
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        (weight * 3).sum().backward()
    torch.accelerator.current_stream().wait_stream(stream)
    assert weight.grad is not None
    assert weight.grad.unique().tolist() == [3.0]


def test_autocast(device: torch.device) -> None:
    a = torch.randn(8, 8, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        product = a @ a
        assert product.dtype == torch.bfloat16
        assert product.softmax(-1).dtype == torch.float32
