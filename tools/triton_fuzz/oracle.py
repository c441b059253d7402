"""Triton's interpreter, in a process of its own: with TRITON_INTERPRET=1 nothing of the process can be compiled, and
Triton's own library of kernels is only interpretable in such a process."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import linecache
import multiprocessing
import os
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy
import torch
from triton.runtime import interpreter

from tools.triton_fuzz.program import Program


class InterpreterError(Exception):
    """The interpreter does not run the program. Carries its traceback."""


def load_kernel(path: Path) -> Any:
    """The function `kernel` of a source file; Triton reads the source of what it compiles from the file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


class Oracle:
    """Runs programs in the interpreter."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _environment("TRITON_INTERPRET", "1"):
            self._process.start()
        theirs.close()

    def start(self, program: Program, path: Path) -> None:
        """Begins a program, behind those that were started before."""
        self._connection.send_bytes(pickle.dumps((program, path)))

    def result(self, program: Program) -> dict[str, torch.Tensor]:
        """The buffers after the program, which is the next of those that were started."""
        result = pickle.loads(self._connection.recv_bytes())
        if isinstance(result, str):
            raise InterpreterError(result)
        return {
            buffer.name: torch.frombuffer(bytearray(result[buffer.name]), dtype=getattr(torch, buffer.dtype))
            for buffer in program.buffers
            if buffer.aliases is None
        }

    def close(self) -> None:
        self._connection.close()
        self._process.join()


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _with_arrays_as_taken(function: Callable[..., Any], mask: int | None) -> Callable[..., Any]:
    """Memory is accessed with the elements of an array as they lie, whatever its strides: those of a reversed scan are
    negative, and what lies behind its first element is not its own. And from Triton 3.9 on the argument `mask` must be
    an array of bool, as masks that were computed are not."""

    def call(*arguments: Any) -> Any:
        arrays = [numpy.ascontiguousarray(value) if isinstance(value, numpy.ndarray) else value for value in arguments]
        if mask is not None:
            arrays[mask] = arrays[mask].astype(bool)
        return function(*arrays)

    return call


def _serve(connection: Connection) -> None:
    warnings.simplefilter("ignore")  # NumPy's, of integers that wrap
    for name, mask in (("load", 1), ("store", 2), ("atomic_rmw", 3), ("atomic_cas", None)):
        function = getattr(interpreter._interpreter, name)
        setattr(interpreter._interpreter, name, _with_arrays_as_taken(function, mask))
    torch.set_num_threads(1)
    gc.freeze()
    while True:
        try:
            program, path = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(pickle.dumps(_interpret(program, path)))


def _interpret(program: Program, path: Path) -> dict[str, bytes] | str:
    """The buffers' bytes (not every dtype can be pickled), or what went wrong."""
    try:
        tensors = program.tensors()
        load_kernel(path)[(program.grid,)](*program.arguments(tensors))
        return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}
    except Exception:
        return traceback.format_exc()
    finally:
        linecache.cache.pop(str(path), None)
