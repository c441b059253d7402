"""Processes in one group of torch.distributed, for tests. The fixture in pytest_plugin.py starts them."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.utils import _pytree as pytree

from torch_mtia.conformance.settings import open_device

__all__ = ["RankError", "Ranks", "StartRanks"]

START, ANSWER, STOP = 300.0, 300.0, 20.0  # seconds; long enough for a busy machine

Environment = Mapping[str, str]


class RankError(Exception):
    """What the ranks raised, each with its traceback."""


class Ranks:
    """`size` processes with a device each, in one group.

    Where a function fails on some ranks, the others may be left in the middle of a collective. Such processes are
    ended, and `alive` is false.
    """

    def __init__(
        self,
        size: int,
        device: str | None = None,
        imports: Sequence[str] = (),
        *,
        bound: bool = False,
        environ: Environment | Sequence[Environment] = (),
        timeout: float = 30.0,
    ) -> None:
        """Starts them as torchrun does: each has as many devices as there are ranks. Returns when the group is made.

        `device`: its type; default: the accelerator's, or `cpu`. `imports`: modules that register it. `bound`: pass
        `device_id` to init_process_group. `environ`: variables of all ranks, or of each. `timeout`: seconds that a
        collective waits for ranks that do not call it.
        """
        if device is None:
            accelerator = torch.accelerator.current_accelerator()
            device = accelerator.type if accelerator else "cpu"
        environs = [environ] * size if isinstance(environ, Mapping) else environ or [{}] * size
        if size < 1:
            raise ValueError(f"size is {size}: it must be at least 1")
        if len(environs) != size:
            raise ValueError(f"environ has {len(environs)} entries for {size} ranks")
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(size)]
        self._connections = [here for here, _ in ends]
        self._processes = [
            context.Process(
                name=f"rank {rank}",
                target=_serve,
                args=(rank, size, there, self._folder.name, device, tuple(imports), bound, timeout),
                daemon=True,
            )
            for rank, (_, there) in enumerate(ends)
        ]
        for process, variables in zip(self._processes, environs, strict=True):
            with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": str(size), **variables}):
                process.start()
        for _, there in ends:
            there.close()
        self._collect(START)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, function: Callable[..., object], *args: object) -> list[Any]:
        """Returns what `function(rank, *args)` returned, by rank. Raises RankError if one raised or has ended.

        Function, arguments and results are pickled: the function is one of a module that the ranks can import, and
        results are Python values or CPU tensors. The calling process has one device, and cannot receive tensors of
        other ranks' devices.
        """
        requests = self._pickled(function, args)
        if not self.alive:
            raise RankError("the ranks have ended: start them again")
        try:
            return self._ask(requests)
        except RankError:
            self._end_if_out_of_step()
            raise
        except BaseException:
            self.kill()  # later ranks' answers are still in their pipes
            raise

    def _pickled(self, function: Callable[..., object], args: Sequence[object]) -> list[memoryview]:
        """For each rank: shared memory in a pickle can be opened once."""
        return [ForkingPickler.dumps((function, args)) for _ in self._connections]

    def _ask(self, requests: Sequence[memoryview]) -> list[Any]:
        for connection, request in zip(self._connections, requests, strict=True):
            connection.send_bytes(request)
        return self._collect(ANSWER)

    def _end_if_out_of_step(self) -> None:
        if self.alive:
            try:
                self._ask(self._pickled(_meet, ()))
            except RankError:
                self.kill()

    def _collect(self, limit: float) -> list[Any]:
        deadline = time.monotonic() + limit
        answers = [_answer(connection, deadline) for connection in self._connections]
        silent = [rank for rank, answer in enumerate(answers) if answer is None]
        failures = [f"rank {rank}: {answer[0]}" for rank, answer in enumerate(answers) if answer and answer[0]]
        if silent:
            for rank in silent:
                self._processes[rank].join(0.5)  # a pipe is closed a moment before its process has ended
            ended = [process for process in self._processes if process.exitcode is not None]
            self.kill()
            failures.append(f"no answer of rank {', '.join(map(str, silent))}")
            failures += [f"{process.name} ended with exit code {process.exitcode}" for process in ended]
        if failures:
            raise RankError("\n".join(failures))
        return [answer[1] for answer in answers if answer is not None]

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def stop(self) -> None:
        """Lets the ranks leave the group and end."""
        for connection in self._connections:
            if self.alive:
                connection.send(None)
        for process in self._processes:
            process.join(STOP)
        self.kill()
        self._folder.cleanup()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


StartRanks = Callable[..., Ranks]
"""The type of the fixture `start_ranks`, which takes Ranks' arguments."""


def _answer(connection: Connection, deadline: float) -> tuple[str, Any] | None:
    try:
        return connection.recv() if connection.poll(max(0.0, deadline - time.monotonic())) else None
    except EOFError:
        return None


def _on_host(result: object) -> object:
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
            raise TypeError(f"the result has a tensor on {leaf.device}: return `tensor.cpu()`")
    return result


def _meet(_: int) -> None:
    dist.barrier()


def _serve(
    rank: int,
    size: int,
    connection: Connection,
    folder: str,
    name: str,
    imports: tuple[str, ...],
    bound: bool,
    timeout: float,
) -> None:
    torch.set_num_threads(1)
    device = open_device(name, imports)
    if device.type != "cpu":
        device = torch.device(device.type, rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else None,
        init_method=f"file://{Path(folder) / 'store'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
        device_id=device if bound else None,
    )
    connection.send(("", None))
    while True:
        try:
            request = connection.recv()  # imports the function's module
            if request is None:
                break
            function, args = request
            answer = ForkingPickler.dumps(("", _on_host(function(rank, *args))))
        except EOFError:  # the starting process has ended
            break
        except BaseException:
            answer = ForkingPickler.dumps((traceback.format_exc(), None))
        connection.send_bytes(answer)
    dist.destroy_process_group()
