"""`import torch` is enough, costs no thread, and says what went wrong when it cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunScript

USE = "x = torch.ones(3, device='mtia'); assert (x + x).tolist() == [2, 2, 2]; print('used')"


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


@pytest.mark.in_tree("the entry point is called mtia")
def test_an_error_inside_autoload_is_shown_with_its_cause(run_script: RunScript) -> None:
    finished = run_script("import torch", TORCH_MTIA_DEVICES="abc")
    assert finished.returncode == 1
    assert "Failed to load the backend extension: mtia" in finished.stderr
    assert "TORCH_MTIA_DEVICES" in finished.stderr
    assert "abc" in finished.stderr


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
