"""A process that compiles kernels for GPUs with Triton's back ends: workers.py starts this file, and transfer.py writes
what it reads. It imports nothing of torch_mtia, whose backend it has no use for, and nothing of the program.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import linecache
import marshal
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any, BinaryIO, ClassVar

LENGTH = struct.Struct("<Q")


class _Functions:
    """Makes the functions that are described, when something first refers to them."""

    places: ClassVar[dict[str, tuple[str, int]]] = {}  # file and first line of `def`, by source

    def __init__(self, described: list[dict[str, Any]]) -> None:
        self._described = described
        self._made: dict[int, Any] = {}

    def loads(self, data: bytes) -> Any:
        find = self._find

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, reference: Any) -> Any:
                return find(*reference)

        return Unpickler(io.BytesIO(data)).load()

    def _find(self, kind: str, which: Any) -> Any:
        if kind == "module":
            return importlib.import_module(which)
        if which not in self._made:
            self._make(which)
        return self._made[which]

    def _make(self, number: int) -> None:
        each = self._described[number]
        if each["kind"] == "module":
            module = self._made[number] = ModuleType(each["name"])
            self._fill(vars(module), each["variables"])
            return
        from triton.runtime import jit

        _remember_lines(each["file"], each["line"], each["lines"])
        variables: dict[str, Any] = {}
        defaults, keyword_defaults, annotations = self.loads(each["signature"])
        code = marshal.loads(each["code"])
        cells = {name: CellType() for name in code.co_freevars}
        fn = FunctionType(code, variables, each["name"], defaults, tuple(cells.values()))
        fn.__kwdefaults__, fn.__annotations__ = keyword_defaults, annotations
        fn.__qualname__, fn.__module__ = each["qualname"], each["module"]
        made = jit.JITFunction(fn, **each["options"]) if each["kind"] == "jit" else getattr(jit, each["kind"])(fn)
        if made.src != each["source"]:
            made._unsafe_update_src(each["source"])
        decorators = next(i for i, text in enumerate(each["lines"]) if text.lstrip().startswith("def "))
        self.places[made.src] = (each["file"], each["line"] + decorators)
        self._made[number] = made
        self._fill(variables, each["variables"])
        for name, value in each["nonlocals"].items():
            cells[name].cell_contents = self.loads(value)

    def _fill(self, variables: dict[str, Any], values: dict[str, bytes]) -> None:
        for name, value in values.items():
            variables[name] = self.loads(value)


def _remember_lines(file: str, first: int, lines: list[str]) -> None:
    """Makes Python find these lines in the file, whatever it has by now."""
    known = linecache.cache.get(file)
    text = list(known[2]) if known is not None and len(known) == 4 else []
    text += ["\n"] * (first - 1 + len(lines) - len(text))
    text[first - 1 : first - 1 + len(lines)] = lines
    linecache.cache[file] = (sum(map(len, text)), None, text, file)


class _Driver:
    """What kernels ask for the target, as `tl.target_info.is_cuda()` does."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target


def compile_kernel(job: dict[str, Any]) -> dict[str, Any]:
    """Returns the files of the compiled kernel by kind, its metadata, and what cuobjdump says of it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver

    backend, arch, warp_size = job["target"]
    target = GPUTarget(backend, arch, warp_size)
    driver.set_active(_Driver(target))
    try:
        compiler = make_backend(target)
    except RuntimeError:
        raise LookupError(f"the installed Triton {triton.__version__} has no back end for {backend}") from None
    described, arguments = pickle.loads(job["kernel"])
    fn, signature, constants, attributes = _Functions(described).loads(arguments)
    known = vars(compiler.parse_options({"instrumentation_mode": ""}))
    if unknown := [name for name in job["options"] if name not in known]:
        raise KeyError(f"Keyword argument {unknown[0]} was specified but unrecognised")  # as Triton's launch says
    for place in job["aligned"]:
        attributes[(place,)] = [["tt.divisibility", 16]]
    if backend == "hip" and triton.knobs.amd.use_buffer_ops:  # as its specialization of pointers
        for (place, *inner), known_of_it in attributes.items():
            if not inner and place in job["short"]:
                attributes[(place,)] = [*known_of_it, ["tt.pointer_range", 32]]
    source = ASTSource(fn, signature, constants, attributes)
    compiled = triton.compile(source, target=target, options={**job["options"], "instrumentation_mode": ""})
    files = {name.rpartition(".")[2]: path for name, path in compiled.metadata_group.items()}
    metadata = {**compiled.metadata._asdict(), "target": None}
    result = {"files": files, "metadata": metadata, "cache_key": fn.cache_key, "resources": "", "sass": ""}
    result["ttir"] = Path(files["ttir"]).read_text() if "ttir" in files else ""
    if "cubin" in files:
        result["resources"] = _cuobjdump("--dump-resource-usage", files["cubin"])
        if " STACK:0 " not in result["resources"]:
            result["sass"] = _cuobjdump("-sass", files["cubin"])
    return result


def _cuobjdump(*arguments: str) -> str:
    import triton

    command = [triton.knobs.nvidia.cuobjdump.path, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _failure(error: BaseException) -> dict[str, Any]:
    """What the compiler says, with the innermost place in the program's source that it names."""
    from triton.compiler.errors import CompilationError

    place, message = None, str(error).strip()
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, CompilationError) and each.node is not None and each.src in _Functions.places:
            file, line = _Functions.places[each.src]
            place, message = (file, line + each.node.lineno - 1), each.error_message or message
        each = each.__cause__ or each.__context__
    return {"error": f"{type(error).__name__}: {message}".rstrip(": "), "place": place}


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answers requests until there are no more."""
    while length := requests.read(LENGTH.size):
        job = pickle.loads(requests.read(*LENGTH.unpack(length)))
        with contextlib.suppress(OSError):
            os.ftruncate(2, 0)
            os.lseek(2, 0, os.SEEK_SET)
        try:
            reply = compile_kernel(job)
        except Exception as error:  # whatever a compiler raises is its answer
            reply = _failure(error)
        data = pickle.dumps(reply)
        replies.write(LENGTH.pack(len(data)) + data)
        replies.flush()


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules have names of others
    sys.path += pickle.loads(sys.stdin.buffer.read(*LENGTH.unpack(sys.stdin.buffer.read(LENGTH.size))))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # compilers print
    serve(sys.stdin.buffer, answers)
