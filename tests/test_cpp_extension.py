"""C++ extensions build against the installed headers and run work on the device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

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
