"""Runs programs on mtia and in the interpreter, and compares."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from tools.hunts.worker import Failure, Outcome, in_turn
from tools.triton_fuzz.device import device_worker
from tools.triton_fuzz.generate import generate
from tools.triton_fuzz.oracle import interpreter_worker
from tools.triton_fuzz.program import Buffer, Program

AHEAD = 4  # programs that a pair of workers has started
LIMIT = 60.0  # seconds for one program


class Pair:
    """A process with the device and one with the interpreter, that run the same programs. Of an Outcome's kinds it has
    one more: "not interpreted"."""

    def __init__(self, device: str, cache: Path, limit: float = LIMIT) -> None:
        self._device = device_worker(device, cache, limit)
        self._interpreter = interpreter_worker(limit)
        self._started: collections.deque[Program] = collections.deque()

    def start(self, program: Program) -> None:
        self._interpreter.start(program)
        self._device.start(program)
        self._started.append(program)

    def finish(self) -> Outcome:
        """What came of the oldest of the programs that were started."""
        program = self._started.popleft()
        expected, actual = self._interpreter.finish(), self._device.finish()
        if isinstance(expected, Failure):
            return Outcome("not interpreted", expected.detail)
        if isinstance(actual, Failure):
            return Outcome(actual.kind, actual.detail)
        differences = [
            difference
            for buffer in program.buffers
            if buffer.aliases is None
            and actual[buffer.name] != expected[buffer.name]
            and (difference := compare(buffer, actual[buffer.name], expected[buffer.name]))
        ]
        return Outcome("different", "\n".join(differences)) if differences else Outcome("same")

    def close(self) -> None:
        self._device.close()
        self._interpreter.close()


class Fuzzer:
    """Runs programs of many seeds, in some pairs of processes. `folder` gets what they are compiled to."""

    def __init__(self, folder: Path, device: str, pairs: int = 1) -> None:
        self._pairs = [Pair(device, folder / str(number)) for number in range(pairs)]

    def close(self) -> None:
        for pair in self._pairs:
            pair.close()

    def run(self, seeds: Iterable[int]) -> Iterator[tuple[Program, Outcome]]:
        """The programs of the seeds, in their order, with their outcomes."""
        return in_turn(self._pairs, map(generate, seeds), together=AHEAD)


def compare(buffer: Buffer, actual_bytes: bytes, expected_bytes: bytes) -> str:
    """What is wrong with a buffer; empty: nothing."""
    actual, expected = (
        torch.frombuffer(bytearray(content), dtype=getattr(torch, buffer.dtype))
        for content in (actual_bytes, expected_bytes)
    )
    if buffer.tolerance:
        error = (actual.double() - expected.double()).abs() / expected.double().abs().clamp(min=1)
        wrong = ~((error <= buffer.tolerance) | (actual == expected))
    else:
        wrong = actual != expected
    if not wrong.any():
        return ""
    index = int(wrong.nonzero()[0])
    return (
        f"{buffer.name} ({buffer.dtype}): {int(wrong.sum())} of {len(wrong)} elements, the first [{index}] is "
        f"{actual[index].item()!r} where the interpreter says {expected[index].item()!r}"
    )
