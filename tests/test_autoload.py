"""`import torch` is enough, costs no thread, and says what went wrong when it cannot be."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING

import pytest
import torch

from torch_mtia import _build
from torch_mtia._versions import built_for_another_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunScript


@pytest.fixture
def forked() -> bool:
    return False


USE = "x = torch.ones(3, device='mtia'); assert (x + x).tolist() == [2, 2, 2]; print('used')"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("imports", "autoload"),
    [
        pytest.param("import torch", "1", id="torch alone"),
        pytest.param("import torch, torch_mtia", "0", id="explicit, autoload off"),
        pytest.param("import torch_mtia, torch", "0", id="torch_mtia first, autoload off"),
        pytest.param("import torch_mtia, torch", "1", id="torch_mtia first"),
        pytest.param("import torch, torch_mtia", "1", id="both"),
        pytest.param("import torch._dynamo, torch_mtia", "1", id="torch._dynamo first"),
    ],
)
def test_either_import_gives_the_device(run_script: RunScript, imports: str, autoload: str) -> None:
    finished = run_script(f"{imports}\n{USE}", TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert finished.output() == "used\n"
    assert finished.stderr == ""


@pytest.mark.in_tree("torch.mtia is there without torch_mtia")
def test_autoload_off_leaves_torch_without_the_device(run_script: RunScript) -> None:
    script = "import torch; print(torch.mtia.is_available())"
    assert run_script(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output() == "False\n"


@pytest.mark.sampled(4)
@pytest.mark.in_tree("another name is no device before torch_mtia is there")
@pytest.mark.parametrize(
    "first_use",
    [
        "torch.accelerator.current_accelerator()",
        "torch.accelerator.is_available()",
        "torch.mtia.device_count()",
        "torch.ones(1, requires_grad=True).sum().backward()",
    ],
)
def test_importing_too_late_raises_and_names_the_remedy(run_script: RunScript, first_use: str) -> None:
    finished = run_script(
        f"""
        import torch
        {first_use}
        try:
            import torch_mtia
        except RuntimeError as error:
            print(error)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    message = finished.output()
    assert "too late" in message
    assert "Import torch_mtia" in message
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in message


BROKEN = {
    "another PyTorch": """
        import importlib.util
        spec = importlib.util.find_spec("torch_mtia")
        place = os.path.join(spec.submodule_search_locations[0], "_versions.py")
        spec = importlib.util.spec_from_file_location("torch_mtia._versions", place)
        versions = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(versions)
        versions.SUPPORTED_TORCH = ((1, 0),)
        sys.modules["torch_mtia._versions"] = versions
    """,
    "not built": """
        sys.modules["torch_mtia._build"] = None
    """,
    "no extension module": """
        sys.modules["torch_mtia._C"] = None
    """,
}
REASONS = {
    "another PyTorch": "works with PyTorch 1.0, and this is PyTorch",
    "not built": "is not built in this folder",
    "no extension module": "extension module does not load",
}


@pytest.mark.in_tree("the entry point is called mtia")
@pytest.mark.parametrize("broken", BROKEN)
def test_a_package_that_does_not_load_leaves_pytorch_alone(run_script: RunScript, broken: str) -> None:
    finished = run_script(
        f"""
        import os, sys
        {BROKEN[broken]}
        import torch
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()
        torch.manual_seed(0)
        print(x.grad.tolist(), torch.mtia.is_available(), torch.accelerator.is_available(), flush=True)
        import triton
        torch.ones(1, device="mtia")
        """
    )
    assert finished.returncode == 1
    assert finished.stdout == "[2.0, 2.0, 2.0] False False\n"
    assert REASONS[broken] in finished.stderr.splitlines()[0]
    assert REASONS[broken] in finished.stderr.splitlines()[-1]


@pytest.mark.in_tree("the entry point is called mtia")
@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_package_that_does_not_load_raises_where_it_is_imported_by_name(
    run_script: RunScript, broken: str, autoload: str
) -> None:
    script = f"import os, sys\n{textwrap.dedent(BROKEN[broken])}\nimport torch_mtia"
    finished = run_script(script, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("ImportError: torch_mtia")
    assert REASONS[broken] in finished.stderr.splitlines()[-1]


@pytest.mark.in_tree("the entry point is called mtia")
def test_an_error_inside_autoload_is_shown_with_its_cause_at_the_first_use(run_script: RunScript) -> None:
    finished = run_script("import torch; print('imported'); torch.ones(1, device='mtia')", TORCH_MTIA_DEVICES="abc")
    assert (finished.returncode, finished.stdout) == (1, "imported\n")
    assert "TORCH_MTIA_DEVICES='abc' is not valid" in finished.stderr.splitlines()[0]  # the warning
    assert "raise ValueError" in finished.stderr  # where it was found
    assert "TORCH_MTIA_DEVICES='abc' is not valid" in finished.stderr.splitlines()[-1]


def test_a_failed_autoload_fails_every_import_alike(run_script: RunScript) -> None:
    finished = run_script("import torch_mtia", TORCH_MTIA_DEVICES="abc", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert finished.returncode == 1
    assert "TORCH_MTIA_DEVICES='abc' is not valid" in finished.stderr


def test_import_starts_no_thread(run_script: RunScript) -> None:
    script = "import os, torch; print(len(os.listdir('/proc/self/task')))"
    without = run_script(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output()
    assert run_script(script).output() == without
    explicit = "import torch_mtia\n" + script
    assert run_script(explicit, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output() == without


def test_import_does_not_initialize_the_device(run_script: RunScript) -> None:
    assert run_script("import torch; print(torch.mtia.is_initialized())").output() == "False\n"


@pytest.mark.parametrize("asked_before", ["pass", "torch.mtia.is_available(); torch.accelerator.device_count()"])
def test_a_process_forked_before_first_use_can_use_the_device(run_script: RunScript, asked_before: str) -> None:
    finished = run_script(
        f"""
        import os, sys, torch
        {asked_before}
        pid = os.fork()
        {USE}
        if pid == 0:
            torch.mtia.synchronize()
            sys.stdout.flush()
            os._exit(17)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
        """
    )
    assert finished.output().count("used") == 2


IMPORTS = ("torch", "triton", "torch._dynamo", "torch._inductor.async_compile")


@pytest.mark.sampled(12)
@pytest.mark.in_tree("torch.mtia is there without torch_mtia")
@pytest.mark.parametrize("imports", list(itertools.permutations(IMPORTS, 2)), ids="-".join)
def test_autoload_off_loads_nothing_whatever_is_imported(run_script: RunScript, imports: tuple[str, str]) -> None:
    finished = run_script(
        f"""
        import {imports[0]}
        import torch
        torch.accelerator.is_available()
        torch.ones(1, requires_grad=True).sum().backward()
        torch.mtia.device_count()
        import {imports[1]}
        import triton, sys
        try:
            triton.runtime.driver.active
        except RuntimeError as error:
            assert "0 active drivers" in str(error), error
        print([name for name in sys.modules if name.split(".")[0] == "torch_mtia"])
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert finished.output() == "[]\n"
    assert finished.stderr == ""


@pytest.mark.wide
@pytest.mark.in_tree("torch.mtia is there without torch_mtia")
def test_autoload_off_leaves_compiled_code_of_the_cpu_alone(run_script: RunScript, tmp_path: Path) -> None:
    finished = run_script(
        """
        import sys, torch
        torch.ones(1, requires_grad=True).sum().backward()
        x = torch.arange(8.0)
        assert torch.equal(torch.compile(lambda x: (x * 2).sum(0))(x), (x * 2).sum(0))
        import triton
        print("torch_mtia" in sys.modules)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        TORCHINDUCTOR_COMPILE_THREADS="2",
    )
    assert finished.output() == "False\n"


@pytest.mark.sampled(4)
@pytest.mark.in_tree("Triton's backend is called mtia, whatever the device is")
@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize("imports", ["import torch, torch_mtia, triton", "import triton, torch, torch_mtia"])
def test_triton_has_the_backend_once_it_is_loaded(run_script: RunScript, imports: str, autoload: str) -> None:
    finished = run_script(
        f"""
        {imports}
        from triton.backends import backends
        from triton.compiler.compiler import make_backend
        from torch_mtia.triton.compiler import MTIABackend
        from torch_mtia.triton.driver import MTIADriver
        driver = triton.runtime.driver.active
        assert isinstance(driver, backends["mtia"].driver)
        assert not isinstance(3, backends["mtia"].driver)
        print(type(driver) is MTIADriver, type(make_backend(driver.get_current_target())) is MTIABackend)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD=autoload,
    )
    assert finished.output() == "True True\n"


@pytest.mark.in_tree("Triton's backend is called mtia, whatever the device is")
def test_triton_alone_finds_the_device_without_loading_it(run_script: RunScript) -> None:
    finished = run_script(
        """
        import sys, triton
        print("torch_mtia" in sys.modules)
        print(triton.runtime.driver.active.get_current_target().backend)
        """
    )
    assert finished.output() == "False\nmtia\n"


@pytest.mark.wide
def test_worker_processes_compile_for_a_device_that_was_imported_by_name(run_script: RunScript, tmp_path: Path) -> None:
    finished = run_script(
        """
        import torch, torch_mtia
        from torch_mtia.triton.compiler import MTIABackend
        from torch._inductor.async_compile import AsyncCompile
        AsyncCompile.wait_pool_ready()
        assert AsyncCompile.use_process_pool()
        make_llir = MTIABackend.make_llir
        MTIABackend.make_llir = staticmethod(lambda *arguments: print("compiled here") or make_llir(*arguments))
        device = torch.accelerator.current_accelerator()
        x = torch.arange(64.0).view(8, 8).to(device)
        print(torch.compile(lambda x: (x * 2).sum(0))(x).tolist() == (x * 2).sum(0).tolist())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        TORCHINDUCTOR_COMPILE_THREADS="2",
    )
    assert finished.output() == "True\n"


def test_every_public_module_is_there_after_the_import(run_script: RunScript) -> None:
    script = "import torch_mtia; print([name for name in torch_mtia.__all__ if not hasattr(torch_mtia, name)])"
    assert run_script(script).output() == "[]\n"
    assert run_script("import torch, torch_mtia; print(torch_mtia.privateuse1.enable.__name__)").output() == "enable\n"


def test_a_build_for_another_minor_version_is_refused() -> None:
    assert built_for_another_torch("2.13.0", "2.13.1+cpu") is None
    message = str(built_for_another_torch("2.13.0", "2.14.0"))
    assert "was built for PyTorch 2.13, and this is PyTorch 2.14.0" in message
    assert "whose version ends in +torch2.14" in message
    assert "pip install 'torch==2.13.*'" in message
    assert built_for_another_torch(_build.TORCH, torch.__version__) is None
