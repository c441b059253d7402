"""A process that runs programs in order. One that crashes or hangs costs its program, not the run."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import importlib.util
import linecache
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import torch

from tools.triton_fuzz.program import Program

Tensors: TypeAlias = dict[str, torch.Tensor]
# Runs one program, whose kernel and tensors are given: it changes the tensors, or returns them changed.
Run: TypeAlias = Callable[[Program, Any, Tensors], Tensors]

BETWEEN_COLLECTIONS = 100  # programs


@dataclasses.dataclass(frozen=True)
class Failure:
    kind: str  # "error": an exception, with its traceback; "crash": a signal; "hang"
    detail: str


class Worker:
    """`prepare` is called in the process, with `arguments`, and returns what runs a program."""

    def __init__(
        self, prepare: Callable[..., Run], *arguments: Any, environment: Mapping[str, str] | None = None, limit: float
    ) -> None:
        self._prepare = prepare
        self._arguments = arguments
        self._environment = environment or {}
        self._limit = limit
        self._pending: collections.deque[Program] = collections.deque()
        self._start_process()

    def start(self, program: Program) -> None:
        """Begins a program, behind those that were started before."""
        self._pending.append(program)
        self._send(program)

    def result(self) -> dict[str, bytes] | Failure:
        """The buffers after the next of the programs that were started."""
        try:
            if self._connection.poll(self._limit):
                result: dict[str, bytes] | Failure = pickle.loads(self._connection.recv_bytes())
                self._pending.popleft()
                return result
            failure = Failure("hang", f"no result after {self._limit:.0f} s")
            self._process.kill()
            self._process.join()
        except (EOFError, ConnectionError):
            self._process.join()
            failure = Failure("crash", f"the process ended with {self._process.exitcode}")
        self._pending.popleft()
        self._connection.close()
        self._start_process()
        return failure

    def close(self) -> None:
        self._connection.close()
        self._process.join(self._limit)
        self._process.kill()

    def _send(self, program: Program) -> None:
        # A process that is gone is noticed, and replaced, where its result is asked for.
        with contextlib.suppress(ConnectionError):
            self._connection.send_bytes(pickle.dumps(program))

    def _start_process(self) -> None:
        """With the programs that wait."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._prepare, self._arguments), daemon=True)
        with _changed(self._environment):
            self._process.start()
        theirs.close()
        for program in self._pending:
            self._send(program)


@contextlib.contextmanager
def _changed(environment: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection, prepare: Callable[..., Run], arguments: tuple[Any, ...]) -> None:
    run = prepare(*arguments)
    torch.set_num_threads(1)
    gc.freeze()  # what is there by now stays, and need not be looked at again
    gc.set_threshold(100_000)
    count = 0
    while True:
        try:
            program = pickle.loads(connection.recv_bytes())
            connection.send_bytes(pickle.dumps(_result(run, program)))
        except (EOFError, ConnectionError):  # whoever asked is gone
            return
        count += 1
        if count % BETWEEN_COLLECTIONS == 0:
            gc.collect()


def _result(run: Run, program: Program) -> dict[str, bytes] | Failure:
    """The buffers' bytes (not every dtype can be pickled), or what went wrong."""
    name = f"<seed {program.seed}>"
    try:
        tensors = run(program, _load_kernel(name, program.source), program.tensors())
        return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}
    except Exception:
        return Failure("error", traceback.format_exc())
    finally:
        linecache.cache.pop(name, None)


def _load_kernel(name: str, source: str) -> Any:
    """The function `kernel` of a source; Triton reads it where Python keeps the lines for tracebacks."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("fuzzed", None, origin=name))
    exec(compile(source, name, "exec"), module.__dict__)
    return module.kernel
