"""`import torch` is enough, costs no thread, leaves GPUs alone, and says what went wrong when it cannot be."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch

import torch_mtia
from torch_mtia import _build
from torch_mtia._versions import built_for_another_torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunPython, RunScript


@pytest.fixture
def forked() -> bool:
    return False


BESIDE_A_GPU = """
import importlib.util, os, sys
package = importlib.util.find_spec("torch").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("torch.version", os.path.join(package, "version.py"))
sys.modules["torch.version"] = version = importlib.util.module_from_spec(spec)
spec.loader.exec_module(version)
version.{build} = "9.0"
"""
"""PyTorch built for another accelerator; whose device files are there, a test says."""


def files(root: Path, *names: str) -> str:
    """Makes device files. Returns the folder that stands in for /."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("0x8086\n")
    return str(root)


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


@pytest.mark.in_tree("another name asks for the device")
def test_beside_a_gpu_nothing_is_registered_and_the_first_use_says_how(run_script: RunScript, tmp_path: Path) -> None:
    finished = run_script(
        f"""
        import sys
        finders = list(sys.meta_path)
        {textwrap.indent(BESIDE_A_GPU.format(build="cuda"), "        ").lstrip()}
        import torch
        assert torch.accelerator.current_accelerator() is None and not torch.mtia.is_available()
        assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.Tensor", "MTIA")
        assert "torch_mtia" not in vars(torch.Tensor)["__deepcopy__"].__code__.co_filename
        assert sys.meta_path == finders
        assert "torch_mtia._C" not in sys.modules and "torch_mtia.upstream_gates" not in sys.modules
        import triton
        from triton.backends import backends
        print("active:", backends["mtia"].driver.is_active(), flush=True)
        torch.ones(3, device="mtia")
        """,
        TORCH_MTIA_SYSTEM_ROOT=files(tmp_path, "dev/nvidia0"),
    )
    assert finished.stdout == "active: False\n", finished.stderr
    message = finished.stderr.splitlines()[-1]
    assert message.startswith("RuntimeError: torch_mtia has not loaded the device mtia")
    assert "this machine has CUDA devices" in message
    assert "`import torch_mtia`" in message
    assert "TORCH_MTIA_AUTOLOAD=1" in message
    assert "Warning" not in finished.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("imports", "settings"),
    [
        pytest.param("import torch, torch_mtia", {}, id="by name"),
        pytest.param("import torch_mtia, torch", {}, id="by name, first"),
        pytest.param("import torch; from torch_mtia import launch_host_function", {}, id="a name of it"),
        pytest.param("import torch, torch_mtia", {"TORCH_MTIA_AUTOLOAD": "0"}, id="by name, though switched off"),
        pytest.param("import torch", {"TORCH_MTIA_AUTOLOAD": "1"}, id="asked for"),
        pytest.param("import torch", {"CUDA_VISIBLE_DEVICES": ""}, id="no visible GPU"),
        pytest.param("import torch", {"CUDA_VISIBLE_DEVICES": "-1"}, id="none of the GPUs"),
    ],
)
def test_beside_a_gpu_the_device_is_there_for_who_asks(
    run_script: RunScript, tmp_path: Path, imports: str, settings: dict[str, Any]
) -> None:
    script = f"{BESIDE_A_GPU.format(build='cuda')}\n{imports}\n{USE}"
    finished = run_script(script, TORCH_MTIA_SYSTEM_ROOT=files(tmp_path, "dev/nvidia0"), **settings)
    assert finished.output() == "used\n"


@pytest.mark.in_tree("another name asks for the device")
def test_processes_of_one_that_uses_the_device_beside_a_gpu_use_it_too(run_script: RunScript, tmp_path: Path) -> None:
    finished = run_script(
        f"""
        {textwrap.indent(BESIDE_A_GPU.format(build="cuda"), "        ").lstrip()}
        import torch, torch_mtia, os
        print(os.environ["TORCH_MTIA_AUTOLOAD"])
        """,
        TORCH_MTIA_SYSTEM_ROOT=files(tmp_path, "dev/nvidia0"),
    )
    assert finished.output() == "1\n"


@pytest.mark.parametrize(
    ("build", "names", "environ", "expected"),
    [
        pytest.param("cuda", ["dev/nvidia0"], {}, "CUDA", id="CUDA"),
        pytest.param("cuda", ["dev/nvidia0"], {"CUDA_VISIBLE_DEVICES": "1,0"}, "CUDA", id="chosen"),
        pytest.param("cuda", ["dev/nvidia0"], {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, "CUDA", id="chosen by name"),
        pytest.param("cuda", ["dev/nvidia0"], {"CUDA_VISIBLE_DEVICES": "-1"}, "", id="hidden"),
        pytest.param("cuda", ["dev/nvidiactl"], {}, "", id="a driver without a GPU"),
        pytest.param("cuda", ["dev/kfd"], {}, "", id="a GPU that PyTorch is not built for"),
        pytest.param("cuda", ["dev/dxg"], {}, "CUDA", id="in WSL"),
        pytest.param("hip", ["dev/kfd"], {}, "ROCm", id="ROCm"),
        pytest.param("hip", ["dev/kfd"], {"HIP_VISIBLE_DEVICES": ""}, "", id="ROCm, hidden"),
        pytest.param("xpu", ["sys/class/drm/renderD128/device/vendor"], {}, "XPU", id="XPU"),
        pytest.param("xpu", ["dev/nvidia0"], {}, "", id="XPU, without"),
        pytest.param("debug", ["dev/nvidia0", "dev/kfd"], {}, "", id="built for none"),
    ],
)
def test_other_accelerators_are_found_by_their_files(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    build: str,
    names: list[str],
    environ: dict[str, str],
    expected: str,
) -> None:
    for accelerator in ("cuda", "hip", "xpu"):
        monkeypatch.setattr(torch.version, accelerator, None)
    monkeypatch.setattr(torch.version, build, "9.0")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (environ | {"TORCH_MTIA_SYSTEM_ROOT": files(tmp_path, *names)}).items():
        monkeypatch.setenv(name, value)
    assert torch_mtia._other() == expected


@pytest.mark.in_tree("another name is no device before torch_mtia is there")
def test_warnings_that_are_errors_do_not_fail_the_import(run_python: RunPython) -> None:
    script = "import torch; print('imported'); torch.mtia.synchronize()"
    finished = run_python("-W", "error::UserWarning", "-c", script, TORCH_MTIA_DEVICES="abc")
    assert finished.stdout == "imported\n"
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
