"""C++ extensions build against the installed headers and run work on the device."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.cpp_extension import include_paths

from torch_mtia import cpp_extension
from torch_mtia.cpp_extension import COMPILE_FLAGS, MtiaExtension

if TYPE_CHECKING:
    from tests.conftest import RunScript
    from tests.interpreter import Finished

EXAMPLE = Path(__file__).parent.parent / "examples" / "custom_operator"


@pytest.fixture(autouse=True)
def _needs_the_device(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("about the device's headers")


def test_the_installed_headers_include_nothing_else_of_the_package() -> None:
    (folder,) = map(Path, cpp_extension.include_paths())
    headers = {path.relative_to(folder) for path in folder.rglob("*.h")}
    assert Path("torch_mtia/device/Extension.h") in headers
    for header in headers:
        for line in (folder / header).read_text().splitlines():
            if line.startswith('#include "'):
                included = (folder / header.parent / line.split('"')[1]).resolve()
                assert included.relative_to(folder.resolve()) in headers


def test_the_headers_are_those_of_the_source() -> None:
    (folder,) = map(Path, cpp_extension.include_paths())
    for header in (folder / "torch_mtia").rglob("*.h"):
        source = EXAMPLE.parent.parent / "csrc" / header.relative_to(folder / "torch_mtia")
        if header.name == "c_shim_mtia.h":  # generated
            source = EXAMPLE.parent.parent / "build" / "generated" / header.name
        assert header.read_text() == source.read_text(), "build again"


def test_an_extension_keeps_the_options_it_is_given() -> None:
    extension = MtiaExtension(
        "name", ["a.cpp"], include_dirs=["mine"], extra_compile_args=["-O1"], extra_link_args=["-s"]
    )
    assert extension.include_dirs[0] == "mine"
    assert set(cpp_extension.include_paths()) <= set(extension.include_dirs)
    assert extension.extra_compile_args == [*COMPILE_FLAGS, "-O1"]
    assert extension.extra_link_args == ["-s", *cpp_extension.link_flags()]
    assert "torch" in extension.libraries


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extensions")


@pytest.mark.in_tree("the example registers kernels for the key MTIA")
class TestTheExample:
    """One build serves all."""

    @pytest.fixture
    def run_example(self, folder: Path, run_script: RunScript) -> RunScript:
        def run(text: str, /, *, timeout: float = 300, **environment: str) -> Finished:
            head = f"import sys; sys.path.insert(0, {str(EXAMPLE)!r}); import axpy, torch; axpy.build()\n"
            return run_script(head + text, timeout=timeout, TORCH_EXTENSIONS_DIR=str(folder), **environment)

        return run

    def test_runs_as_a_program(self, run_example: RunScript) -> None:
        output = run_example("axpy.main()").output()
        assert "example::axpy" in output
        assert "Self MTIA" in output

    def test_runs_in_the_current_stream_in_order(self, run_example: RunScript) -> None:
        run_example(
            "x = torch.ones(2**20, device='mtia')\n"
            "stream = torch.Stream('mtia')\n"
            "torch.mtia.synchronize()\n"
            "with stream:\n"
            "    for _ in range(20): x = torch.ops.example.axpy(2, x, x) - x\n"
            "    assert (x == 2.0**20).all(), x\n"
            "for n in (0, 1, 5): assert torch.ops.example.axpy(3, x[:n], x[:n]).tolist() == [4 * 2.0**20] * n\n"
        ).output()

    def test_checks_its_arguments_at_the_call(self, run_example: RunScript) -> None:
        finished = run_example("torch.ops.example.axpy(2, torch.ones(3, device='mtia'), torch.ones(4, device='mtia'))")
        assert finished.returncode == 1
        assert "RuntimeError: axpy: x has shape [3] and y [4]" in finished.stderr

    def test_is_refused_in_a_fork(self, run_example: RunScript) -> None:
        run_example(
            "import os\n"
            "x = torch.ones(3, device='mtia')\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    try: torch.ops.example.axpy(2, x, x)\n"
            "    except RuntimeError as error: os._exit(0 if 'spawn' in str(error) else 1)\n"
            "    os._exit(2)\n"
            "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        ).output()


@pytest.mark.wide
def test_what_an_extensions_work_throws_is_raised_at_the_synchronizing_call(
    run_script: RunScript, tmp_path: Path
) -> None:
    source = tmp_path / "failing.cpp"
    source.write_text("""
        #include <stdexcept>
        #include <torch/library.h>
        #include <torch_mtia/device/Extension.h>
        static void fail(const at::Tensor& x) {
          torch_mtia::launch(x.device(), {"failing::fail"}, [] { throw std::out_of_range("index 7"); });
        }
        TORCH_LIBRARY(failing, library) { library.def("fail(Tensor x) -> ()", fail); }
    """)
    script = f"""
        import torch
        from torch.utils import cpp_extension
        from torch_mtia.cpp_extension import COMPILE_FLAGS, include_paths, link_flags
        cpp_extension.load("failing", [{str(source)!r}], extra_cflags=COMPILE_FLAGS, is_python_module=False,
                           extra_include_paths=include_paths(), extra_ldflags=link_flags())
        x = torch.ones(3, device="mtia")
        torch.ops.failing.fail(x)
        try:
            torch.mtia.synchronize()
        except RuntimeError as error:
            print(error)
        print((x + 1).tolist())
    """
    output = run_script(script, timeout=300, TORCH_EXTENSIONS_DIR=str(tmp_path)).output()
    assert "index 7" in output
    assert "failing::fail" in output
    assert output.endswith("[2.0, 2.0, 2.0]\n")


def test_flags_may_be_given_by_compiler() -> None:
    extension = MtiaExtension("name", ["source.cpp"], extra_compile_args={"cxx": ["-O3"], "nvcc": ["-g"]})
    flags: Any = extension.extra_compile_args
    assert flags == {"cxx": [*COMPILE_FLAGS, "-O3"], "nvcc": ["-g"]}


CALLS = """
#include <torch_mtia/device/Extension.h>

#include <exception>
#include <string>

template <typename Call>
static const char* error_of(Call call) {
  static std::string text;
  try {
    call();
  } catch (const std::exception& error) {
    return (text = error.what()).c_str();
  }
  return nullptr;
}

#define EXPORTED extern "C" [[gnu::visibility("default")]] const char*

EXPORTED add_one(float* address) {
  return error_of([&] {
    float* const x = torch_mtia::host_address(address);
    torch_mtia::launch(c10::Device(c10::kMTIA), {"calls::add_one"}, [x] { *x += 1; });
  });
}
EXPORTED ask_driver(int32_t* num_devices) {
  return error_of([&] {
    const mtia_runtime_api& api = torch_mtia::extension_driver();
    if (api.device_count(num_devices) != MTIA_SUCCESS) *num_devices = -1;
  });
}
EXPORTED submit_sized(uint32_t size) {
  mtia_work work{};
  work.struct_size = size;
  work.run = [](void*, const mtia_work_context*) { return MTIA_SUCCESS; };
  return error_of([&] { torch_mtia::submit(c10::Device(c10::kMTIA), work); });
}
EXPORTED size_of_work(uint32_t* size) {
  *size = sizeof(mtia_work);
  return nullptr;
}
"""


def of_abi_version_1(_header: str) -> str:
    return (Path(__file__).parent / "older_driver" / "mtia_runtime.h").read_text()


def with_a_later_field(header: str) -> str:
    assert header.count("\n} mtia_work;") == header.count("\n} mtia_runtime_api;") == 1
    header = header.replace("\n} mtia_work;", "\n  uint64_t added[9];\n} mtia_work;")
    return header.replace("\n} mtia_runtime_api;", "\n  mtia_status (*added)(void);\n} mtia_runtime_api;")


@pytest.fixture
def build_with(tmp_path: Path) -> Any:
    """Returns a function that builds CALLS against the installed headers, one of which is another, and loads it."""
    (installed,) = map(Path, cpp_extension.include_paths())

    def build(header: str, changed: Any) -> ctypes.CDLL:
        shutil.copytree(installed / "torch_mtia", tmp_path / "torch_mtia")
        path = tmp_path / "torch_mtia" / header
        path.write_text(changed(path.read_text()))
        (tmp_path / "calls.cpp").write_text(CALLS)
        folders = [f"-I{tmp_path}", *(f"-isystem{folder}" for folder in include_paths())]
        command = ["g++", *COMPILE_FLAGS, "-fPIC", "-shared", *folders, "-o", "calls.so", "calls.cpp"]
        subprocess.run([*command, *cpp_extension.link_flags()], check=True, cwd=tmp_path)
        library = ctypes.CDLL(str(tmp_path / "calls.so"))
        for name in ("add_one", "ask_driver", "submit_sized"):
            getattr(library, name).restype = ctypes.c_char_p
        return library

    return build


@pytest.mark.in_tree("the extension asks for mtia by name")
@pytest.mark.parametrize("changed", [of_abi_version_1, with_a_later_field])
def test_an_extension_with_an_older_or_a_later_driver_header_works(build_with: Any, changed: Any) -> None:
    extension = build_with("runtime/mtia_runtime.h", changed)
    x = torch.ones(1, device="mtia")
    assert extension.add_one(ctypes.c_void_p(x.data_ptr())) is None
    assert x.item() == 2
    count, size = ctypes.c_int32(), ctypes.c_uint32()
    assert extension.ask_driver(ctypes.byref(count)) is None
    assert count.value == torch.accelerator.device_count()
    extension.size_of_work(ctypes.byref(size))
    assert extension.submit_sized(size) is None
    torch.accelerator.synchronize()


@pytest.mark.in_tree("the extension asks for mtia by name")
def test_an_extension_for_another_version_of_the_interface_is_refused(build_with: Any) -> None:
    def another(header: str) -> str:
        assert header.count("kExtensionVersion = 1;") == 1
        return header.replace("kExtensionVersion = 1;", "kExtensionVersion = 2;")

    extension = build_with("device/Extension.h", another)
    count = ctypes.c_int32()
    for error in (extension.add_one(None), extension.ask_driver(ctypes.byref(count)), extension.submit_sized(80)):
        assert b"version 2 of torch_mtia/device/Extension.h, and the installed torch_mtia has version 1" in error
        assert b"build the extension again" in error


@pytest.mark.in_tree("the extension asks for mtia by name")
def test_work_of_a_size_that_no_header_had_is_refused(build_with: Any) -> None:
    extension = build_with("device/Extension.h", str)
    assert b"struct_size of the mtia_work is 72, and must be" in extension.submit_sized(72)
    assert b"struct_size of the mtia_work is 0, and must be" in extension.submit_sized(0)
