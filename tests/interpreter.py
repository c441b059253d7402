"""Python processes of a test's own, without the seconds that each would take to import PyTorch.

`run_python` does what `python ARGUMENTS` does, in a process that is forked from a server, which has no threads and has
used no device. Where the environment has no settings that imports read, the server has imported PyTorch with the
package and its compilers; otherwise nothing but torch, and the process loads the package as `import torch` would have
done at its end. `fork_what_is_spawned` does the same for the processes that multiprocessing spawns, such as ranks.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import multiprocessing.process
import multiprocessing.util
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TextIO

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Variables that no import reads, and those that only an import of the package or of a compiler reads.
READ_LATER = ("_TORCHINDUCTOR_", "MTIA_TEST_", "PYTEST_", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
READ_BY_PACKAGES = (AUTOLOAD, "LOCAL_WORLD_SIZE", "TORCH_MTIA_", "TORCHINDUCTOR_", "TRITON_")
SET_CHILD_SUBREAPER = 36  # of prctl


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
    server = _server_like(environment) if forked else None
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        output = (stdout.fileno(), (stdout if merged else stderr).fileno())
        if server:
            returncode = _run_forked(server, arguments, cwd, environment, timeout, output)
        else:
            returncode = _run_new(arguments, cwd, environment, timeout, output)
        for file in (stdout, stderr):
            file.seek(0)
        return Finished(returncode, stdout.read(), stderr.read())


def _run_new(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout: float, output: tuple[int, int]
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
    server: _Server,
    arguments: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    timeout: float,
    output: tuple[int, int],
) -> int:
    with open(os.devnull) as null:
        files = {0: null.fileno(), 1: output[0], 2: output[1]}
        pipe = server.start(arguments, cwd, environment, files)
    with pipe as status:
        process = int(status.readline())
        if not select.select([status], [], [], timeout)[0]:
            os.kill(process, signal.SIGKILL)
            raise subprocess.TimeoutExpired([sys.executable, *arguments], timeout)
        return int(status.readline())


def fork_what_is_spawned() -> None:
    """Makes multiprocessing fork its new interpreters from the server, in this process."""
    spawn_new = multiprocessing.util.spawnv_passfds
    prctl = ctypes.CDLL(None).prctl

    def spawn(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        server = _server_like(os.environ) if "--multiprocessing-fork" in arguments else None
        if server is None:
            return spawn_new(path, arguments, descriptors)
        arguments = arguments[arguments.index("-c") :]
        files = {number: number for number in (0, 1, 2, *descriptors)}
        prctl(SET_CHILD_SUBREAPER, 1)  # so that it is this process's child once the one between them has ended
        try:
            with server.start(arguments, Path.cwd(), os.environ, files, is_awaited=False) as status:
                process = int(status.readline())
            while int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]) != os.getpid():
                time.sleep(0.001)
        finally:
            prctl(SET_CHILD_SUBREAPER, 0)
        return process

    vars(multiprocessing.util)["spawnv_passfds"] = spawn


class _Server:
    """It ends when the socket is closed. `has_packages`: it has imported more than torch."""

    def __init__(self, has_packages: bool) -> None:
        self._environment = clean_environment()
        self._read_later = READ_LATER if has_packages else READ_LATER + READ_BY_PACKAGES
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *(["packages"] if has_packages else [])],
                env=self._environment if has_packages else self._environment | {AUTOLOAD: "0"},
                pass_fds=[theirs.fileno()],
            )

    def is_like(self, environment: Mapping[str, str]) -> bool:
        differing = {name for name, _ in environment.items() ^ self._environment.items()}
        return all(name.startswith(self._read_later) for name in differing)

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        files: Mapping[int, int],
        is_awaited: bool = True,
    ) -> TextIO:
        """Returns a pipe with a line of its number and, if it is awaited, one of its status at its end.

        `files`: descriptors by the number that each has there.
        """
        reader, writer = os.pipe()
        request = json.dumps([arguments, str(cwd), dict(environment), list(files), is_awaited]).encode()
        socket.send_fds(self._requests, [request], [writer, *files.values()])
        os.close(writer)
        return os.fdopen(reader)


@functools.cache
def _server(has_packages: bool) -> _Server:
    """The one of this process, started at first use."""
    return _Server(has_packages)


def _server_like(environment: Mapping[str, str]) -> _Server | None:
    servers = (_server(has_packages) for has_packages in (True, False))
    return next((server for server in servers if server.is_like(environment)), None)


def _import_packages() -> None:
    """What a first compilation imports, most of it."""
    names = [
        "torch._dynamo.backends.inductor",
        "torch._inductor.fx_passes.joint_graph",
        "torch._inductor.fx_passes.post_grad",
        "torch.distributed.tensor",
    ]
    if util.find_spec("llvmlite") and util.find_spec("triton"):
        names += ["torch_mtia.inductor.scheduling", "torch_mtia.triton.driver", "torch_mtia.triton.emit"]
    for name in names:
        importlib.import_module(name)
    from torch._inductor.fx_passes import serialized_patterns

    for module in pkgutil.iter_modules(serialized_patterns.__path__, f"{serialized_patterns.__name__}."):
        importlib.import_module(module.name)


def _serve(requests: socket.socket, has_packages: bool) -> list[str] | None:
    """Returns the arguments in each process that is forked; None in the server, at the end."""
    import torch

    if has_packages:
        _import_packages()
    gc.collect()
    gc.freeze()  # processes that end do not go through what is imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that wait
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 32)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            status, *files = descriptors
            arguments: list[str]
            arguments, cwd, environment, numbers, is_awaited = json.loads(request)
            if process := os.fork():
                os.write(status, f"{process}\n".encode())
                if is_awaited:
                    ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                    os.write(status, f"{ended}\n".encode())
                os._exit(0)
            os.close(status)
            _become(arguments, cwd, environment, dict(zip(numbers, files, strict=True)))
            if not has_packages and environment.get(AUTOLOAD) != "0":
                vars(torch.__spec__)["_initializing"] = True
                torch._import_device_backends()
                vars(torch.__spec__)["_initializing"] = False
            if environment.get(AUTOLOAD) != "0":
                _hide_own_lines(arguments, environment)
            return arguments
        for descriptor in descriptors:
            os.close(descriptor)


def _become(arguments: list[str], cwd: str, environment: dict[str, str], files: dict[int, int]) -> None:
    """Makes this process what a new interpreter would be."""
    beyond = max(files) + 1
    moved = {number: fcntl.fcntl(descriptor, fcntl.F_DUPFD, beyond) for number, descriptor in files.items()}
    for descriptor in files.values():
        os.close(descriptor)
    for number, descriptor in moved.items():
        os.dup2(descriptor, number)
        os.close(descriptor)
    if os.path.samestat(os.fstat(1), os.fstat(2)):
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
    os.chdir(cwd)
    vars(multiprocessing.process)["ORIGINAL_DIR"] = cwd  # where processes that it spawns look for its program
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[1:] = arguments
    sys.argv[:] = [arguments[0], *arguments[2:]] if arguments[0] in ("-m", "-c") else arguments
    sys.path[0] = {"-m": cwd, "-c": ""}.get(arguments[0]) or str(Path(arguments[0]).resolve().parent)


def _hide_own_lines(arguments: list[str], environment: dict[str, str]) -> None:
    """From the sanitizer's reports."""
    program = Path(arguments[0]).read_text() if Path(arguments[0]).is_file() else ""
    if any("sanitize" in text for text in (program, *arguments)) or environment.get("TORCH_MTIA_SANITIZE"):
        from torch_mtia.sanitizer import report

        report.PACKAGES = (*report.PACKAGES, __file__)


if __name__ == "__main__":
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])), "packages" in sys.argv)
    if arguments is not None:
        try:
            if arguments[0] == "-m":
                runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
            else:
                is_file = arguments[0] != "-c"
                text = Path(arguments[0]).read_bytes() if is_file else arguments[1]
                program = compile(text, os.path.abspath(arguments[0]) if is_file else "<string>", "exec")
                named = {"__file__": program.co_filename} if is_file else {}
                for name in set(globals()) - {"__name__", "__builtins__", "__doc__", "__loader__", "program", "named"}:
                    del globals()[name]
                globals().update(named, __spec__=None)
                exec(program)
        except Exception as error:
            import sys

            own = error.__traceback__ and error.__traceback__.tb_next  # without the line above
            sys.excepthook(type(error), error.with_traceback(own), own)
            sys.exit(1)
