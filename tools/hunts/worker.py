"""A process that runs programs in order. One that crashes or hangs costs its program, not the hunt."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, Generic, Protocol, TypeAlias, TypeVar

ProgramT = TypeVar("ProgramT")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
ProgramT_contra = TypeVar("ProgramT_contra", contravariant=True)
Run: TypeAlias = Callable[[ProgramT], ResultT]
SECONDS_TO_SAY_WHERE = 10
BETWEEN_COLLECTIONS = 100  # programs


@dataclasses.dataclass(frozen=True)
class Failure:
    """Of a program that has no result."""

    kind: str  # "error": an exception, with its traceback; "crash": a signal; "hang"
    detail: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a program; some hunts have kinds of their own."""

    kind: str  # "same", "different", or a Failure's
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.kind != "same"


class Worker(Generic[ProgramT, ResultT]):
    """`prepare` is called in the process, which has `environment` added to its own, and returns what runs a program.

    Programs and results are pickled, and so is `prepare`: a function of a module, or a partial one. `limit`: seconds
    that a program may take. The process starts with the first program; after `programs` another one takes over.
    """

    def __init__(
        self,
        prepare: Callable[[], Run[ProgramT, ResultT]],
        environment: Mapping[str, str],
        limit: float,
        programs: int | None = None,
    ) -> None:
        self._prepare = prepare
        self._environment = environment
        self._limit = limit
        self._programs = programs
        self._pending: collections.deque[ProgramT] = collections.deque()
        self._connection: Connection | None = None

    def run(self, program: ProgramT) -> ResultT | Failure:
        self.start(program)
        return self.finish()

    def start(self, program: ProgramT) -> None:
        """Begins a program, behind those that were started before."""
        self._pending.append(program)
        if self._connection is None:
            self._start_process()
        else:
            self._send(program)

    def finish(self) -> ResultT | Failure:
        """The result of the oldest of the programs that were started."""
        assert self._connection is not None
        try:
            if self._connection.poll(self._limit):
                result: ResultT | Failure = pickle.loads(self._connection.recv_bytes())
                self._pending.popleft()
                self._done += 1
                if self._done == self._programs:
                    self._replace_process()
                return result
            os.kill(self._process.pid or 0, signal.SIGABRT)  # faulthandler says where its threads are
            self._process.join(SECONDS_TO_SAY_WHERE)
            kind, detail = "hang", f"no result after {self._limit:.0f} s"
        except (EOFError, ConnectionError):
            self._process.join(SECONDS_TO_SAY_WHERE)
            kind, detail = "crash", f"the process ended with {self._process.exitcode}"
        self._errors.seek(0)
        failure = Failure(kind, f"{kind}: {detail}\n{self._errors.read()}")
        self._pending.popleft()
        self._replace_process()
        return failure

    def close(self) -> None:
        """Programs that were started are forgotten. Another one starts another process."""
        self._pending.clear()
        if self._connection is not None:
            self._end_process()

    def _send(self, program: ProgramT) -> None:
        # A process that is gone is noticed, and replaced, where its result is asked for.
        assert self._connection is not None
        with contextlib.suppress(ConnectionError):
            self._connection.send_bytes(pickle.dumps(program))

    def _replace_process(self) -> None:
        self._end_process()
        if self._pending:
            self._start_process()

    def _start_process(self) -> None:
        """With the programs that wait."""
        self._done = 0
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._errors: IO[str] = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - closed with the process
        arguments = (theirs, self._prepare, self._errors.name)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with _changed(self._environment):
            self._process.start()
        theirs.close()
        for program in self._pending:
            self._send(program)

    def _end_process(self) -> None:
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        self._process.join(SECONDS_TO_SAY_WHERE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._errors.close()


class Runner(Protocol[ProgramT_contra, ResultT_co]):
    """A Worker, or several that take turns or belong together."""

    def start(self, program: ProgramT_contra) -> None: ...
    def finish(self) -> ResultT_co: ...


def in_turn(
    runners: Sequence[Runner[ProgramT, ResultT]], programs: Iterable[ProgramT], *, together: int = 1
) -> Iterator[tuple[ProgramT, ResultT]]:
    """The programs with their results, in order. `together`: how many in a row go to the same runner, which has as
    many started at a time."""
    turns: collections.deque[tuple[Runner[ProgramT, ResultT], ProgramT]] = collections.deque()
    for number, program in enumerate(programs):
        runner = runners[number // together % len(runners)]
        runner.start(program)
        turns.append((runner, program))
        if len(turns) > together * len(runners):
            first, started = turns.popleft()
            yield started, first.finish()
    for runner, program in turns:
        yield program, runner.finish()


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


def _serve(connection: Connection, prepare: Callable[[], Run[Any, Any]], errors: str) -> None:
    with open(errors, "a") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    run = prepare()
    gc.freeze()  # what is there by now stays, and need not be looked at again
    gc.set_threshold(100_000)
    count = 0
    with contextlib.suppress(EOFError, ConnectionError):  # whoever asked is gone
        while True:
            program = pickle.loads(connection.recv_bytes())
            try:
                result = run(program)
            except Exception:
                result = Failure("error", traceback.format_exc())
            connection.send_bytes(pickle.dumps(result))
            count += 1
            if count % BETWEEN_COLLECTIONS == 0:
                gc.collect()
