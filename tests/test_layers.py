"""The layers of csrc/ know only what docs/architecture.md says that they know."""

from __future__ import annotations

import os.path
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

import torch_mtia

ROOT = Path(__file__).parent.parent
LAYERS = (
    "csrc/processor",
    "csrc/collectives",
    "csrc/runtime",
    "csrc/core",
    "csrc/sanitizer",
    "csrc/device",
    "csrc/aten",
    "csrc/distributed",
    "csrc/aoti",
    "csrc/python",
)  # each knows those before it
DRIVER = "csrc/runtime/host"
# All of csrc/ that a driver may know.
OF_THE_DRIVER = (
    "csrc/runtime/mtia_runtime.h",
    "csrc/runtime/live_ranges.h",
    "csrc/runtime/machine_memory.h",
    "csrc/processor/assertion.h",
    "csrc/processor/attributes.h",
)

# Headers of others, by how their names begin, and the first layer that may include them.
PYTORCH = ("ATen/", "c10/", "torch/", "kineto/")
PYTHON = ("Python.h", "structmember.h", "pybind11/", "torch/csrc/")
# Of torch/csrc, what knows nothing of Python, and who may include it.
OWN = {
    "csrc/distributed": ("torch/csrc/distributed/c10d/",),
    "csrc/aoti": ("torch/csrc/inductor/", "torch/csrc/stable/c/", "torch/csrc/shim_exception_state.h"),
}
PYTHON_NAMES = re.compile(r"\bPy(?!Torch)[A-Z_]|\bpy::|\bpybind11\b")

# Who may call the driver, and reads its table: csrc/core and, as docs/architecture.md says, these.
CALLS_THE_DRIVER = ("csrc/device/Extension.h", "csrc/device/Extension.cpp")
SUBMITS = re.compile(r"mtia_runtime_api::(?:stream_launch|stream_launch_kernel|memory_copy|memory_fill|graph_launch)\b")


def sources() -> dict[str, str]:
    paths = [path for path in ROOT.glob("csrc/**/*") if path.suffix in (".h", ".cpp")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def code_of(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def layer_of(path: str) -> int:
    return next(rank for rank, layer in enumerate(LAYERS) if path.startswith(f"{layer}/"))


def included_by(text: str) -> list[str]:
    return re.findall(r'^#include ["<]([^">]+)[">]', text, flags=re.MULTILINE)


def own_headers(path: str, text: str, files: Iterable[str]) -> list[str]:
    """What a file of csrc/ includes of csrc/."""
    folders = (os.path.dirname(path), "csrc", "csrc/aten")  # in which setup.py has the compiler look
    found = (os.path.normpath(os.path.join(folder, name)) for name in included_by(text) for folder in folders)
    return [header for header in found if header in files]


def violations(files: dict[str, str]) -> list[str]:
    found = []
    for path, text in files.items():
        code, layer = code_of(text), layer_of(path)
        for header in own_headers(path, text, files):
            is_above = layer_of(header) > layer
            if path.startswith(DRIVER):
                is_above = not header.startswith(DRIVER) and header not in OF_THE_DRIVER
            elif header.startswith(DRIVER):
                is_above = True
            if is_above:
                found.append(f"{path} includes {header}")
        foreign = (*PYTORCH, *PYTHON) if layer < LAYERS.index("csrc/device") else PYTHON
        if layer < LAYERS.index("csrc/python"):
            ours = OWN.get(LAYERS[layer], ("csrc/",))
            names = [name for name in included_by(text) if not name.startswith(ours)]
            found += [f"{path} includes {name}" for name in names if name.startswith(foreign)]
            if PYTHON_NAMES.search(code):
                found.append(f"{path} names a thing of Python's")
        if re.search(r'import\(\s*"torch_mtia', code):
            found.append(f"{path} imports a module of the package")
        may_call = layer <= LAYERS.index("csrc/core") or path in CALLS_THE_DRIVER
        if not may_call and re.search(r"runtime::driver\(|\bmtia_runtime_api\b", code):
            found.append(f"{path} calls the driver")
        if layer > LAYERS.index("csrc/runtime") and not path.startswith("csrc/core/Stream.") and SUBMITS.search(code):
            found.append(f"{path} submits work")
    return found


def test_each_layer_knows_only_those_below_and_only_streams_submit_work() -> None:
    assert violations(sources()) == []


def test_documents_name_what_calls_the_driver_beside_the_core() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert all(path.removesuffix(".cpp").removesuffix(".h") in text for path in CALLS_THE_DRIVER)


@pytest.mark.parametrize(
    ("path", "line", "violation"),
    [
        ("csrc/core/Event.h", '#include "../device/MTIAStream.h"', "includes csrc/device/MTIAStream.h"),
        ("csrc/aten/Copy.cpp", '#include "python/module.h"', "includes csrc/python/module.h"),
        ("csrc/runtime/host/event.h", '#include "../loader.h"', "includes csrc/runtime/loader.h"),
        ("csrc/runtime/loader.cpp", '#include "host/driver.h"', "includes csrc/runtime/host/driver.h"),
        ("csrc/core/Event.h", "#include <c10/core/Device.h>", "includes c10/core/Device.h"),
        ("csrc/device/MTIAHooks.h", "#include <Python.h>", "includes Python.h"),
        ("csrc/aten/Copy.cpp", "#include <torch/csrc/utils/pybind.h>", "includes torch/csrc/utils/pybind.h"),
        (
            "csrc/device/MTIAHooks.h",
            "#include <torch/csrc/distributed/c10d/Work.hpp>",
            "includes torch/csrc/distributed/c10d/Work.hpp",
        ),
        ("csrc/device/MTIAHooks.h", "PyObject* memoryStats();", "names a thing of Python's"),
        ("csrc/device/MTIAHooks.cpp", "py::dict result;", "names a thing of Python's"),
        ("csrc/core/Stream.cpp", "if (Py_IsInitialized()) return;", "names a thing of Python's"),
        ("csrc/python/module.cpp", 'import("torch_mtia.properties")', "imports a module of the package"),
        ("csrc/device/MTIAStream.cpp", "runtime::driver().stream_query(handle);", "calls the driver"),
        ("csrc/aten/Copy.cpp", "runtime::call(&mtia_runtime_api::event_record);", "calls the driver"),
        ("csrc/core/Graph.cpp", "call(&mtia_runtime_api::graph_launch, exec_);", "submits work"),
    ],
)
def test_the_check_sees(path: str, line: str, violation: str) -> None:
    headers = (
        "csrc/device/MTIAStream.h",
        "csrc/python/module.h",
        "csrc/runtime/loader.h",
        "csrc/runtime/host/driver.h",
    )
    assert f"{path} {violation}" in violations({**dict.fromkeys(headers, ""), path: line})


def test_the_check_does_not_mind_comments_and_what_is_below() -> None:
    files = {
        "csrc/core/Stream.h": "// Py_IsInitialized(), runtime::driver()\n",
        "csrc/device/MTIAStream.h": '#include "../core/Stream.h"\n',
        "csrc/python/module.cpp": '#include <Python.h>\n#include "../device/MTIAStream.h"\n',
    }
    assert violations(files) == []


PACKAGE = Path(torch_mtia.__file__).parent
EXPORTED = re.compile(r'(?:\[\[gnu::visibility\("default"\)\]\] [^;(]*?|AOTI_TORCH_EXPORT \w+ )(\w+)\(')


def symbols(library: Path, option: str) -> set[str]:
    """The demangled names of a library's dynamic symbols: all overloads have one, and a class with its tables."""
    listing = subprocess.check_output(["nm", "-DC", option, library], text=True)
    return {name.partition("(")[0] for name in re.findall(r"^[ 0-9a-f]* \w (?:\w+ for )?(.*)$", listing, re.MULTILINE)}


def test_the_library_exports_what_headers_promise_and_bindings_use_and_nothing_else() -> None:
    exported = symbols(PACKAGE / "lib" / "libtorch_mtia.so", "--defined-only")
    headers = (PACKAGE / "include" / "torch_mtia").rglob("*.h")
    promised = {name for header in headers for name in EXPORTED.findall(header.read_text())}
    assert {"submit", "initialize_program", "aoti_torch_mtia_launch_kernel"} < promised
    public = {name for name in exported if name.rpartition("::")[2] in promised}
    assert {name.rpartition("::")[2] for name in public} == promised
    (bindings,) = PACKAGE.glob("_C.*.so")
    assert exported - public - symbols(bindings, "--undefined-only") == set()
