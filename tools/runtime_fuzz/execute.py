"""Runs a program on the device, and on the CPU what of it did not run out of memory; and compares."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import torch

import torch_mtia
from tools.runtime_fuzz.order import Step, order
from tools.runtime_fuzz.program import Action, Program
from torch_mtia.backend import device_module, device_type

PATIENCE = 60.0  # seconds that a thread waits for another one


class _Graph:
    """On the CPU: runs what was captured again, and writes the results to where they were."""

    def __init__(self, body: str, results: list[str], names: dict[str, Any]) -> None:
        self._code = compile(body, "graph", "exec")
        self._results = results
        self._names = names

    def replay(self) -> None:
        made: dict[str, Any] = {}
        exec(self._code, self._names, made)
        for name in self._results:
            if name in self._names:
                self._names[name].copy_(made[name])
            else:
                self._names[name] = made[name]

    def reset(self) -> None:
        pass


class _NoStream(contextlib.nullcontext[None]):
    def wait_stream(self, stream: _NoStream) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def record_event(self) -> _NoStream:
        return self


class Side:
    """One of the two sides: the names that its statements use."""

    def __init__(self, program: Program, on_device: bool) -> None:
        self.on_device = on_device
        self.streams: list[Any] = [_NoStream() for _ in program.devices]
        if on_device:
            count = max(program.devices) + 1
            self.streams = [torch.accelerator.current_stream(device) for device in range(count)]
            self.streams += [torch.Stream(device=f"{device_type()}:{device}") for device in program.devices[count:]]
        self.names: dict[str, Any] = {
            "torch": torch,
            "gc": gc,
            "streams": self.streams,
            "devices": [f"{device_type()}:{i}" if on_device else "cpu" for i in range(max(program.devices) + 1)],
            **{
                function.__name__.strip("_"): function
                for function in (
                    self._pinned,
                    self._gradient,
                    self._record,
                    self._host_function,
                    self._on,
                    self._keep,
                    self._out_of_memory,
                    self._limit_memory,
                )
            },
        }
        self._given = set(self.names) | {"__builtins__"}

    def made(self) -> dict[str, Any]:
        """What the program's statements made and have not deleted."""
        return {name: value for name, value in self.names.items() if name not in self._given}

    def run(self, action: Action) -> bool:
        """Runs a statement; false if it ran out of memory, or needs what there is not for that reason."""
        if not all(name in self.names for name in action.needs()):
            done = False
        else:
            try:
                with self._current(action.other), self._current(action.stream):
                    exec(action.text, self.names)
                done = True
            except torch.OutOfMemoryError:
                done = False
        if not done and self.on_device:
            # The order that others rely on.
            if action.waits:
                self.streams[action.stream].synchronize()
            if action.other >= 0:
                self.streams[action.other].wait_stream(self.streams[action.stream])
        for name in (*action.deletes, *(() if done else action.provides())):
            self.names.pop(name, None)
        return done

    def _current(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        current: contextlib.AbstractContextManager[Any] = self.streams[stream] if stream >= 0 else _NoStream()
        return current

    def _pinned(self, size: int, dtype: torch.dtype, value: int) -> torch.Tensor:
        return torch.full((size,), value, dtype=dtype, pin_memory=self.on_device)

    @staticmethod
    def _gradient(x: torch.Tensor) -> torch.Tensor:
        leaf = (x % 5).float().requires_grad_()
        (leaf * leaf * 3).backward(torch.ones_like(leaf))
        assert leaf.grad is not None
        return leaf.grad

    def _record(self, stream: int, body: str, results: list[str]) -> Any:
        if not self.on_device:
            return _Graph(body, results, self.names)
        graph = device_module().MTIAGraph()
        made: dict[str, Any] = {}
        with device_module().graph(graph, stream=self.streams[stream]):
            exec(body, self.names, made)
        self.names |= {name: made[name] for name in results}
        return graph

    def _host_function(self, stream: int, function: Callable[[], Any]) -> None:
        def run() -> None:
            with contextlib.suppress(torch.OutOfMemoryError):
                function()

        if self.on_device:
            torch_mtia.launch_host_function(self.streams[stream], run)
        else:
            run()

    def _on(self, stream: int, function: Callable[[], Any]) -> None:
        with self.streams[stream]:
            function()

    def _keep(self, name: str, value: Any) -> None:
        self.names[name] = value

    def _out_of_memory(self, device: str) -> None:
        if not self.on_device:
            return
        try:
            torch.empty(1 << 44, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            return
        raise AssertionError("16 TiB were allocated")

    def _limit_memory(self, fraction: float) -> None:
        if self.on_device:
            for device in range(device_module().device_count()):
                torch_mtia.memory.set_per_process_memory_fraction(fraction, device)


class _Run:
    """The device's side of a program: its threads, and what they made of each action."""

    def __init__(self, side: Side, steps: list[Step]) -> None:
        self._side = side
        self._steps = steps
        self._finished = [threading.Event() for _ in steps]
        self._failure: BaseException | None = None
        self.done: dict[int, bool] = {}  # of actions, by identity

    def all(self, threads: int) -> None:
        started = [threading.Thread(target=self._thread, args=(number,)) for number in range(1, threads)]
        for thread in started:
            thread.start()
        self._thread(0)
        for thread in started:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _thread(self, number: int) -> None:
        try:
            for index, step in enumerate(self._steps):
                if step.thread == number:
                    self._step(step)
                    self._finished[index].set()
        except BaseException as error:
            self._failure = error
            for finished in self._finished:
                finished.set()

    def _step(self, step: Step) -> None:
        for index in step.behind:
            if not self._finished[index].wait(PATIENCE):
                raise TimeoutError(f"step {index} did not end: {self._steps[index].text}")
        if self._failure is not None:
            return
        if step.action is not None:
            self.done[id(step.action)] = self._side.run(step.action)
        elif not step.name or step.name in self._side.names:
            exec(step.text, self._side.names)


def run(program: Program) -> str:
    """What is wrong with the program's results; empty: nothing. Raises what its statements raise."""
    steps = order(program)
    device = Side(program, on_device=True)
    device_run = _Run(device, steps)
    try:
        device_run.all(program.threads)
        _synchronize()
        device.names["limit_memory"](1.0)
        actual = {name: value.cpu() for name, value in device.made().items() if isinstance(value, torch.Tensor)}
    finally:
        device.names["limit_memory"](1.0)
        for name in device.made():
            del device.names[name]
    left = _what_is_left()
    cpu = Side(program, on_device=False)
    for action in program.actions:
        if device_run.done[id(action)]:
            cpu.run(action)
        else:
            for name in (*action.deletes, *action.provides()):
                cpu.names.pop(name, None)
    expected = {name: value for name, value in cpu.made().items() if isinstance(value, torch.Tensor)}
    return "\n".join([*_differences(actual, expected), *left])


def _synchronize() -> None:
    for device in range(device_module().device_count()):
        torch.accelerator.synchronize(device)


def _differences(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    found = []
    for name in sorted(actual.keys() ^ expected.keys()):
        found.append(f"{name}: only on {'the device' if name in actual else 'the CPU'}")
    for name in sorted(actual.keys() & expected.keys()):
        ours, theirs = actual[name], expected[name]
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            found.append(f"{name}: {tuple(ours.shape)} {ours.dtype}, on the CPU {tuple(theirs.shape)} {theirs.dtype}")
        elif not torch.equal(ours, theirs):
            wrong = (ours != theirs).reshape(-1)
            index = int(wrong.nonzero()[0])
            found.append(
                f"{name}: {int(wrong.sum())} of {wrong.numel()} elements, the first [{index}] is "
                f"{ours.reshape(-1)[index].item()}, on the CPU {theirs.reshape(-1)[index].item()}"
            )
    return found


def _what_is_left() -> list[str]:
    """Memory that did not come back."""
    _synchronize()
    if any(torch.accelerator.memory_allocated(device) for device in range(device_module().device_count())):
        gc.collect()
    left = []
    for device in range(device_module().device_count()):
        if allocated := torch.accelerator.memory_allocated(device):
            left.append(f"device {device}: {allocated} bytes are still allocated")
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    for device in range(device_module().device_count()):
        if not left and (reserved := torch.accelerator.memory_reserved(device)):
            left.append(f"device {device}: {reserved} bytes are still reserved")
    return left
