"""Python processes of a test's own, without the seconds that each would take to import PyTorch.

`run_python` does what `python ARGUMENTS` does, in a process that is forked from a server: an interpreter that has
imported torch and nothing of this package. That is safe, as the server has no threads and has used no device. The
process loads the package as `import torch` would have done at its end.
"""

from __future__ import annotations

import functools
import io
import json
import multiprocessing.process
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Nothing that the server imports reads them.
READ_LATER = (AUTOLOAD, "TORCH_MTIA_", "MTIA_TEST_", "PYTEST_", "TORCHINDUCTOR_", "TRITON_")


@dataclass(frozen=True)
class Finished:
    """A child process that has ended."""

    returncode: int
    stdout: str
    stderr: str

    def output(self) -> str:
        """What it printed; it must have succeeded."""
        assert self.returncode == 0, f"exit status {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self.stdout


def clean_environment() -> dict[str, str]:
    """This process's environment without settings; but the device keeps its name."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "TORCH_MTIA_PRIVATEUSE1"
        or not name.startswith(("TORCH_MTIA_", "TORCH_DEVICE_BACKEND_", "PYTHONFAULTHANDLER"))
    }


def run_python(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    timeout: float = 600,
    forked: bool = True,
    merged: bool = False,
) -> Finished:
    """What `python ARGUMENTS` does in folder `cwd`, with no other `environment`.

    `merged`: what it prints on stderr is part of stdout, in order.

    A variable that an interpreter, or torch while it is imported, would read makes it a new interpreter, as does
    `forked=False`, for programs about the import itself. Raises subprocess.TimeoutExpired after `timeout` seconds.
    """
    run = _run_forked if forked and _server().is_like(environment) else _run_new
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        output = (stdout.fileno(), (stdout if merged else stderr).fileno())
        returncode = run(list(arguments), cwd, environment, timeout, output)
        for file in (stdout, stderr):
            file.seek(0)
        return Finished(returncode, stdout.read(), stderr.read())


def _run_new(
    arguments: list[str], cwd: Path, environment: Mapping[str, str], timeout: float, output: tuple[int, int]
) -> int:
    return subprocess.run(
        [sys.executable, *(["-u"] if output[0] == output[1] else []), *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output[0],
        stderr=output[1],
        timeout=timeout,
    ).returncode


def _run_forked(
    arguments: list[str], cwd: Path, environment: Mapping[str, str], timeout: float, output: tuple[int, int]
) -> int:
    reader, writer = os.pipe()
    request = json.dumps([arguments, str(cwd), dict(environment)]).encode()
    socket.send_fds(_server().requests, [request], [*output, writer])
    os.close(writer)
    with os.fdopen(reader) as status:
        process = int(status.readline())
        if not select.select([status], [], [], timeout)[0]:
            os.kill(process, signal.SIGKILL)
            raise subprocess.TimeoutExpired([sys.executable, *arguments], timeout)
        return int(status.readline())


class _Server:
    """It ends when the socket is closed."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=self._environment | {AUTOLOAD: "0"},
                pass_fds=[theirs.fileno()],
            )

    def is_like(self, environment: Mapping[str, str]) -> bool:
        differing = {name for name, _ in environment.items() ^ self._environment.items()}
        return all(name.startswith(READ_LATER) for name in differing)


@functools.cache
def _server() -> _Server:
    """The one of this process, started at first use."""
    return _Server()


def _serve(requests: socket.socket) -> list[str] | None:
    """Returns the arguments in each process that is forked; None in the server, at the end."""
    import torch  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that wait
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if process := os.fork():
                os.write(descriptors[2], f"{process}\n".encode())
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                os.write(descriptors[2], f"{status}\n".encode())
                os._exit(0)
            arguments, cwd, environment = json.loads(request)
            return _become(arguments, cwd, environment, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(arguments: list[str], cwd: str, environment: dict[str, str], descriptors: list[int]) -> list[str]:
    """Makes this process what a new interpreter would be."""
    import torch

    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in zip([null, *descriptors[:2]], range(3), strict=True):
        os.dup2(descriptor, standard)
    for descriptor in [null, *descriptors]:
        os.close(descriptor)
    if os.path.samestat(os.fstat(1), os.fstat(2)):
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=True)
    os.chdir(cwd)
    vars(multiprocessing.process)["ORIGINAL_DIR"] = cwd  # where processes that it spawns look for its program
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[1:] = arguments
    sys.argv[:] = ["-m", *arguments[2:]] if arguments[0] == "-m" else arguments
    sys.path[0] = cwd if arguments[0] == "-m" else str(Path(arguments[0]).resolve().parent)
    if environment.get(AUTOLOAD) != "0":
        vars(torch.__spec__)["_initializing"] = True
        torch._import_device_backends()
        vars(torch.__spec__)["_initializing"] = False
        if environment.get("TORCH_MTIA_SANITIZE") or arguments[:2] == ["-m", "torch_mtia.sanitize"]:
            from torch_mtia.sanitizer import report

            report.PACKAGES = (*report.PACKAGES, __file__)  # its line below is none of the program's
    return arguments


if __name__ == "__main__":
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        try:
            if arguments[0] == "-m":
                runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
            else:
                program = compile(Path(arguments[0]).read_bytes(), os.path.abspath(arguments[0]), "exec")
                for name in set(globals()) - {"__name__", "__builtins__", "__doc__", "__loader__", "program"}:
                    del globals()[name]
                globals().update(__file__=program.co_filename, __spec__=None)
                exec(program)
        except Exception as error:
            import sys

            own = error.__traceback__ and error.__traceback__.tb_next  # without the line above
            sys.excepthook(type(error), error.with_traceback(own), own)
            sys.exit(1)
