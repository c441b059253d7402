"""The processes that compile for GPUs: worker.py, one for each core. A process that dies or hangs costs one answer."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch_mtia.portability.worker import LENGTH

Job: TypeAlias = "dict[str, Any]"
Answer: TypeAlias = "dict[str, Any]"  # of worker.py; or "error", a message, and "place", a file and a line or None

TIMEOUT = 300.0  # seconds for one kernel and one target
_FILE = Path(__file__).with_name("worker.py")
# What is set for mtia, and would change what a GPU's own process compiles.
_NOT_PASSED = ("TRITON_OVERRIDE_ARCH", "TRITON_KERNEL_OVERRIDE", "TRITON_INTERPRET", "TRITON_INSTRUMENTATION_MODE")
_DIAGNOSTIC = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):\d+: error: (?P<message>.*)$", re.MULTILINE)


class _Worker:
    """One process, and the job that it has."""

    def __init__(self) -> None:
        from triton import knobs

        environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
        environment |= {"TRITON_BACKENDS_IN_TREE": "1", "TRITON_CACHE_DIR": knobs.cache.dir}
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # a kernel may name torch
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - until the process has ended
        self._process = subprocess.Popen(
            [sys.executable, str(_FILE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._data = b""
        self.until = 0.0  # when the job is to be done
        self._send(sys.path)

    def _send(self, value: object) -> None:
        data = pickle.dumps(value)
        with contextlib.suppress(BrokenPipeError):  # it has died: its answers end
            self._requests.write(LENGTH.pack(len(data)) + data)
            self._requests.flush()

    def fileno(self) -> int:
        """Returns what can be read when there is some of an answer."""
        return self._answers.fileno()

    def ask(self, job: Job, timeout: float) -> None:
        self._data, self.until = b"", time.monotonic() + timeout
        self._send(job)

    def read(self) -> Answer | None:
        """Returns the answer, if this was the last of it. Raises EOFError when the process has died."""
        piece = os.read(self.fileno(), 1 << 16)
        if not piece:
            raise EOFError
        self._data += piece
        if len(self._data) < LENGTH.size or len(self._data) < LENGTH.size + LENGTH.unpack_from(self._data)[0]:
            return None
        answer: Answer = pickle.loads(self._data[LENGTH.size :])
        return _with_diagnostic(answer, self._printed()) if "error" in answer else answer

    def end(self) -> int:
        """Returns the exit status."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def _printed(self) -> str:
        """What it has printed since the job began."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip("\0\n ")

    def epitaph(self) -> Answer:
        """Returns the answer in place of that of a process that has died."""
        status, log = self.end(), self._printed()
        last = f": {log.splitlines()[-1]}" if log else ""
        return _with_diagnostic(
            {"error": f"the compiler's process died with status {status}{last}", "place": None}, log
        )


class Pool:
    """As many processes as there are cores, started for the first jobs; they end with the `with` statement.

    Without threads, none of which start any more when a process ends.
    """

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._idle: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._idle:
            worker.end()

    def answers(self, jobs: Sequence[Job]) -> list[Answer]:
        """Returns the answers, in the order of the jobs."""
        answers: list[Answer] = [{}] * len(jobs)
        waiting = deque(range(len(jobs)))
        busy: dict[_Worker, int] = {}
        with selectors.DefaultSelector() as selector:
            while waiting or busy:
                while waiting and len(busy) < len(os.sched_getaffinity(0)):
                    number = waiting.popleft()
                    try:
                        worker = self._idle.pop() if self._idle else _Worker()
                    except OSError as error:
                        answers[number] = {"error": f"there is no process to compile in: {error}", "place": None}
                        continue
                    worker.ask(jobs[number], self._timeout)
                    busy[worker] = number
                    selector.register(worker, selectors.EVENT_READ)
                first = min((worker.until for worker in busy), default=0.0)
                for key, _ in selector.select(max(first - time.monotonic(), 0)):
                    assert isinstance(key.fileobj, _Worker)
                    self._hear(key.fileobj, busy, answers, selector)
                for worker in [each for each in busy if each.until <= time.monotonic()]:
                    selector.unregister(worker)
                    worker.kill()
                    message = f"the compiler did not end within {self._timeout:g} seconds"
                    answers[busy.pop(worker)] = {"error": message, "place": None}
        return answers

    def _hear(
        self, worker: _Worker, busy: dict[_Worker, int], answers: list[Answer], selector: selectors.BaseSelector
    ) -> None:
        """A worker has said something, or died."""
        try:
            answer = worker.read()
        except EOFError:
            selector.unregister(worker)
            answers[busy.pop(worker)] = worker.epitaph()
            return
        if answer is not None:
            selector.unregister(worker)
            answers[busy.pop(worker)] = answer
            self._idle.append(worker)


def _with_diagnostic(answer: Answer, log: str) -> Answer:
    """With what the compiler has printed: exceptions of passes say only that one failed."""
    match = _DIAGNOSTIC.search(log)
    if match is None or answer["place"] is not None:
        return answer
    return {"error": f"{answer['error']}: {match['message']}", "place": (match["file"], int(match["line"]))}
