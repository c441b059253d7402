"""Processes that form one group of torch.distributed, and run together what they are told."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import multiprocessing

from torch_mtia.conformance.settings import open_device

START, ANSWER, STOP = 300.0, 300.0, 20.0  # seconds; long enough for a busy machine
GROUP_TIMEOUT = timedelta(seconds=30)


class RankError(Exception):
    """What the ranks raised, each with its traceback."""


class Ranks:
    """Started at once. Where a function fails on some ranks, the others may be left in the middle of a collective: such
    a group is ended."""

    def __init__(
        self,
        size: int,
        device: str,
        imports: Sequence[str] = (),
        *,
        bound: bool = False,
        environ: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """As torchrun starts them: each has as many devices as there are ranks. `bound`: the group is told its device
        at the start. `environ`: variables of each rank's environment."""
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(size)]
        self._connections = [here for here, _ in ends]
        self._processes = [
            context.Process(
                target=_serve, args=(rank, size, there, self._folder.name, device, tuple(imports), bound), daemon=True
            )
            for rank, (_, there) in enumerate(ends)
        ]
        for rank, process in enumerate(self._processes):
            with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": str(size), **(environ[rank] if environ else {})}):
                process.start()
        for _, there in ends:
            there.close()
        self._collect(START)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, function: Callable[..., object], *args: object) -> list[Any]:
        """What function(rank, *args) returned on each. The function is one of a module. Raises RankError."""
        try:
            return self._ask(function, args)
        except RankError:
            self._end_if_out_of_step()
            raise

    def _ask(self, function: Callable[..., object], args: Sequence[object]) -> list[Any]:
        for connection in self._connections:
            connection.send((function, args))
        return self._collect(ANSWER)

    def _end_if_out_of_step(self) -> None:
        if self.alive:
            try:
                self._ask(_meet, ())
            except RankError:
                self.kill()

    def _collect(self, limit: float) -> list[Any]:
        answers = [_answer(connection, limit) for connection in self._connections]
        silent = [rank for rank, answer in enumerate(answers) if answer is None]
        failures = [f"rank {rank}: {answer[0]}" for rank, answer in enumerate(answers) if answer and answer[0]]
        if silent:
            self.kill()
            failures.append(f"no answer of rank {', '.join(map(str, silent))}")
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


def _answer(connection: Connection, limit: float) -> tuple[str, Any] | None:
    try:
        return connection.recv() if connection.poll(limit) else None
    except EOFError:
        return None


def _meet(_: int) -> None:
    dist.barrier()


def _serve(
    rank: int, size: int, connection: Connection, folder: str, name: str, imports: tuple[str, ...], bound: bool
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
        timeout=GROUP_TIMEOUT,
        device_id=device if bound else None,
    )
    connection.send(("", None))
    while (request := connection.recv()) is not None:
        function, args = request
        try:
            answer = ("", function(rank, *args))
        except BaseException:
            answer = (traceback.format_exc(), None)
        connection.send(answer)
    dist.destroy_process_group()
