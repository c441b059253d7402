"""Settings are read once; a wrong one is announced by `import torch` and raises at the first use of a device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from torch_mtia import environment

if TYPE_CHECKING:
    from tests.conftest import RunScript

REPORT = """
import torch
x = torch.ones(3, device="mtia")
print(torch.mtia.device_count(), torch.mtia.get_device_properties(0)["total_memory"])
"""

GIBIBYTE = 2**30


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("settings", "devices", "memory"),
    [
        pytest.param({}, 1, None, id="defaults"),
        pytest.param({"TORCH_MTIA_DEVICES": "4", "TORCH_MTIA_MEMORY": "512M"}, 4, GIBIBYTE // 2, id="mebibytes"),
        pytest.param({"TORCH_MTIA_MEMORY": "2G"}, 1, 2 * GIBIBYTE, id="gibibytes"),
        pytest.param({"TORCH_MTIA_DEVICES": "2", "TORCH_MTIA_MEMORY": "268435456"}, 2, GIBIBYTE // 4, id="bytes"),
        pytest.param({"LOCAL_WORLD_SIZE": "3", "TORCH_MTIA_MEMORY": "64M"}, 3, GIBIBYTE // 16, id="under torchrun"),
        pytest.param(
            {"LOCAL_WORLD_SIZE": "3", "TORCH_MTIA_DEVICES": "2", "TORCH_MTIA_MEMORY": "64M"},
            2,
            GIBIBYTE // 16,
            id="torchrun overruled",
        ),
    ],
)
def test_devices_and_memory(run_script: RunScript, settings: dict[str, Any], devices: int, memory: int | None) -> None:
    found_devices, found_memory = map(int, run_script(REPORT, **settings).output().split())
    assert found_devices == devices
    assert found_memory == memory or (memory is None and found_memory > 0)


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("TORCH_MTIA_DEVICES", "abc", "an integer from 1"),
        ("TORCH_MTIA_DEVICES", "0", "an integer from 1"),
        ("TORCH_MTIA_DEVICES", "-1", "an integer from 1"),
        ("TORCH_MTIA_DEVICES", "1.5", "an integer from 1"),
        ("TORCH_MTIA_DEVICES", "", "an integer from 1"),
        ("TORCH_MTIA_MEMORY", "12Q", "`512M`, `8G`"),
        ("TORCH_MTIA_MEMORY", "-5", "`512M`, `8G`"),
        ("TORCH_MTIA_MEMORY", "1", "at least `64M`"),
        ("TORCH_MTIA_LAUNCH_BLOCKING", "maybe", "`0` or `1`"),
        ("TORCH_MTIA_RUNTIME", "quantum", "`host`"),
        ("TORCH_MTIA_RUNTIME", "/nonexistent/driver.so", "`host`, or the path"),
    ],
)
def test_a_wrong_value_raises_and_lists_the_valid_ones(name: str, value: str, valid: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{re.escape(value)}' is not valid.*{re.escape(valid)}"):
        environment.read({name: value})


def test_an_unknown_name_raises_and_lists_the_settings() -> None:
    with pytest.raises(ValueError, match="TORCH_MTIA_DEVICE is not a setting") as caught:
        environment.read({"TORCH_MTIA_DEVICE": "1"})
    for variable in environment.VARIABLES:
        assert variable.name in str(caught.value)


WRONG = {
    "TORCH_MTIA_MEMROY": ("1G", "TORCH_MTIA_MEMROY is not a setting of torch_mtia: did you mean TORCH_MTIA_MEMORY?"),
    "TORCH_MTIA_MEMORY": ("12Q", "TORCH_MTIA_MEMORY='12Q' is not valid"),
    "TORCH_MTIA_DEFER": ("maybe", "TORCH_MTIA_DEFER='maybe' is not valid"),
    "TORCH_MTIA_PRIVATEUSE1": ("Not A Name", "TORCH_MTIA_PRIVATEUSE1='Not A Name' is not valid"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_leaves_programs_alone_that_do_not_use_the_device(run_script: RunScript, name: str) -> None:
    value, message = WRONG[name]
    script = """
        import torch
        x = torch.arange(3.0, requires_grad=True)
        (x * x).sum().backward()
        print(x.grad.tolist(), torch.accelerator.is_available())
        print(torch.compile(lambda x: x.sin().sum())(torch.zeros(3)).item())
    """
    finished = run_script(script, timeout=120, **{name: value})
    assert finished.output() == "[0.0, 2.0, 4.0] False\n0.0\n"
    assert finished.stderr.count(message) == 1


@pytest.mark.in_tree("another name is no device before torch_mtia is there")
@pytest.mark.parametrize(
    "use", ["torch.ones(1, device='mtia')", "torch.mtia.set_device(0)", "torch.mtia.synchronize()"]
)
def test_a_wrong_setting_raises_at_the_first_use(run_script: RunScript, use: str) -> None:
    _, message = WRONG["TORCH_MTIA_MEMROY"]
    finished = run_script(f"import torch\n{use}", TORCH_MTIA_MEMROY="1G")
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("RuntimeError: torch_mtia did not load")
    assert message in finished.stderr.splitlines()[-1]


def test_settings_beside_a_wrong_one_hold() -> None:
    settings, problems = environment.parse({"TORCH_MTIA_DEVICES": "3", "TORCH_MTIA_MEMORY": "12Q", "TORCH_MTIA_X": ""})
    assert (settings.devices, settings.memory) == (3, None)
    assert len(problems) == 2


def test_a_library_that_is_no_driver_is_refused(run_script: RunScript) -> None:
    some_library = torch.__path__[0] + "/lib/libshm.so"
    finished = run_script("import torch; torch.ones(1, device='mtia')", TORCH_MTIA_RUNTIME=some_library)
    assert finished.returncode == 1
    assert some_library in finished.stderr
    assert "mtia_runtime_get_api" in finished.stderr


def test_the_driver_can_be_named(run_script: RunScript) -> None:
    assert run_script(REPORT, TORCH_MTIA_RUNTIME="host").output().startswith("1 ")


def test_settings_are_read_once(run_script: RunScript) -> None:
    late = "import os, torch\nos.environ['TORCH_MTIA_DEVICES'] = 'abc'\n"
    assert run_script(late + REPORT, TORCH_MTIA_DEVICES="2").output().startswith("2 ")


@pytest.mark.wide
def test_launch_blocking_returns_from_a_launch_when_its_work_is_done(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        x = torch.ones(2**24, device="mtia")
        for _ in range(4):
            x = x * 2
            assert torch.mtia.current_stream().query()
        assert x[-1].item() == 16
        """,
        TORCH_MTIA_LAUNCH_BLOCKING="1",
    )
    finished.output()


@pytest.mark.wide
def test_kernels_are_compiled_with_the_setting_that_was_read(run_script: RunScript) -> None:
    finished = run_script(
        """
        import os, torch
        from torch_mtia.triton.architecture import architecture
        from torch_mtia.triton.compiler import MTIABackend
        from triton.backends.compiler import GPUTarget
        os.environ["TORCH_MTIA_CHECK_BOUNDS"] = "0"
        backend = MTIABackend(GPUTarget("mtia", architecture(), 32))
        checked, unchecked = backend.parse_options({}), backend.parse_options({"instrument": False})
        print(checked.instrument, checked.hash() != unchecked.hash())
        """,
        TORCH_MTIA_CHECK_BOUNDS="1",
    )
    assert finished.output() == "True True\n"
