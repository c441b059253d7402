"""A process that runs one program after the other. One that crashes or hangs costs its program, not the hunt."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import IO, Any, Generic, TypeAlias, TypeVar

ProgramT = TypeVar("ProgramT")
Run: TypeAlias = Callable[[ProgramT], str]  # what is wrong; empty: nothing
SECONDS_TO_SAY_WHERE = 10


@dataclasses.dataclass(frozen=True)
class Outcome:
    kind: str  # "same", "different", "error": an exception, "crash": a signal, "hang"
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.kind != "same"


class Worker(Generic[ProgramT]):
    """`prepare` is called in the process, which has `environment` added to its own, and returns what runs a program.

    Programs are pickled, and so is `prepare`: a function of a module. `limit`: seconds that a program may take.
    """

    def __init__(self, prepare: Callable[[], Run[ProgramT]], environment: Mapping[str, str], limit: float) -> None:
        self._prepare = prepare
        self._environment = environment
        self._limit = limit
        self._connection: Connection | None = None

    def run(self, program: ProgramT) -> Outcome:
        if self._connection is None:
            self._start()
        assert self._connection is not None
        try:
            self._connection.send(program)
            if self._connection.poll(self._limit):
                outcome: Outcome = self._connection.recv()
                return outcome
            os.kill(self._process.pid or 0, signal.SIGABRT)  # faulthandler says where its threads are
            self._process.join(SECONDS_TO_SAY_WHERE)
            kind = f"hang: no result after {self._limit:.0f} s"
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._process.join(SECONDS_TO_SAY_WHERE)
            kind = f"crash: the process ended with {self._process.exitcode}"
        self._errors.seek(0)
        said = self._errors.read()
        self.close()
        return Outcome(kind.partition(":")[0], f"{kind}\n{said}")

    def close(self) -> None:
        if self._connection is None:
            return
        self._connection.close()
        self._connection = None
        self._process.join(SECONDS_TO_SAY_WHERE)
        if self._process.is_alive():
            self._process.kill()
        self._errors.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._errors: IO[str] = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - closed with the process
        arguments = (theirs, self._prepare, self._errors.name)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with _changed(self._environment):
            self._process.start()
        theirs.close()


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


def _serve(connection: Connection, prepare: Callable[[], Run[Any]], errors: str) -> None:
    with open(errors, "a") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    run = prepare()
    with contextlib.suppress(EOFError, OSError):
        while True:
            program = connection.recv()
            try:
                wrong = run(program)
                outcome = Outcome("different", wrong) if wrong else Outcome("same")
            except Exception:
                outcome = Outcome("error", traceback.format_exc())
            connection.send(outcome)
