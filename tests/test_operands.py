"""Work items touch what they list, and nothing else: PyTorch's operators over a driver that watches.

tests/cpp/watching_driver.cpp says how. What an item reads without listing it is wrong data, which shows in results.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import torch_mtia

if TYPE_CHECKING:
    from tests.conftest import RunScript

ROOT = Path(__file__).parent.parent
HOST_DRIVER = Path(torch_mtia.__file__).parent / "lib" / "libmtia_host.so"

pytestmark = pytest.mark.in_tree("the same work items under another name")


@pytest.fixture(scope="module")
def watching_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("watching") / "libwatching.so"
    source = ROOT / "tests" / "cpp" / "watching_driver.cpp"
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["g++", *flags, "-o", str(library), str(source), "-ldl"], check=True)
    return library


LIES = textwrap.dedent("""
    import ctypes
    import os
    from torch_mtia.conformance.driver_api import CONSTANTS, RUN, Driver, sized, structure
    from torch_mtia.conformance.driver_fixtures import new_stream, read, write

    api = Driver(os.environ["TORCH_MTIA_RUNTIME"])
    assert api.initialize() == "MTIA_SUCCESS", api.message()
    address = api.get("memory_allocate", ctypes.c_uint64, 0, 4096)
    offset = api.get("memory_host_offset", ctypes.c_int64)
    ACCESSES = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)

    def copies(name, source, target, *listed):
        def accesses(args, into, capacity):
            entries = (structure("mtia_access") * capacity).from_address(into) if capacity else ()
            for entry, (at, writes) in zip(entries, listed):
                entry.span.address, entry.span.size, entry.writes = address + at, 8, writes
            return len(listed)

        def run(args, context):
            ctypes.memmove(address + offset + target, address + offset + source, 8)
            return 0

        callbacks = RUN(run), ACCESSES(accesses)
        run, accesses = (ctypes.cast(callback, ctypes.c_void_p) for callback in callbacks)
        flags = CONSTANTS["MTIA_WORK_CAPTURABLE"]
        work = sized("mtia_work", run=run, accesses=accesses, flags=flags, name=name, num_threads=1)
        with new_stream(api) as stream:
            write(api, stream, address, bytes(range(64)))
            api("stream_launch", stream, ctypes.byref(work))
            print(name.decode(), read(api, stream, address, 64)[target:target + 8].hex())

    copies(b"honest", 0, 8, (0, 0), (8, 1))
    copies(b"reads more", 16, 8, (0, 0), (8, 1))
    copies(b"writes more", 0, 16, (0, 0), (8, 1))
    copies(b"writes its input", 0, 8, (0, 0), (8, 0))
    copies(b"writes half", 0, 12, (0, 0), (8, 1))
""")


@pytest.mark.wide
def test_the_driver_sees_lies(run_script: RunScript, watching_driver: Path, tmp_path: Path) -> None:
    findings = tmp_path / "findings"
    finished = run_script(
        LIES,
        TORCH_MTIA_RUNTIME=str(watching_driver),
        MTIA_TEST_DRIVER=str(HOST_DRIVER),
        MTIA_TEST_FINDINGS=str(findings),
    )
    assert finished.output().splitlines() == [
        "honest 0001020304050607",
        "reads more 5b5b5b5b5b5b5b5b",
        "writes more 1011121314151617",
        "writes its input 0001020304050607",
        "writes half 0001020310111213",
    ]
    assert findings.read_text().splitlines() == [
        "writes more writes what it does not list",
        "writes its input writes what it lists as read",
        "writes half writes what it does not list",
    ]


def wide(*tests: str) -> list[object]:
    return [pytest.param(test, marks=pytest.mark.wide) for test in tests]


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize(
    "tests",
    [
        "operators/forward/[ab]*/float32",
        *wide("operators/forward/*/float32"),
        *wide("operators/forward/*/int64", "operators/forward/*/bfloat16", "operators/forward/*/complex64"),
        *wide("operators/forward/*/bool", "operators/inplace/*/float32", "operators/out/*/float32"),
        *wide("operators/strides/*/float32", "operators/noncontiguous/*/float32", "operators/broadcasting/*"),
        *wide("modules/*/float32", "optimizers/*"),
    ],
)
def test_operators_touch_what_they_list(tests: str, watching_driver: Path, tmp_path: Path) -> None:
    findings = tmp_path / "findings"
    environment = os.environ | {
        "TORCH_MTIA_RUNTIME": str(watching_driver),
        "MTIA_TEST_DRIVER": str(HOST_DRIVER),
        "MTIA_TEST_FINDINGS": str(findings),
    }
    command = [sys.executable, "-m", "torch_mtia.conformance", "--device", "mtia", "--suite", tests.partition("/")[0]]
    command += ["--test", tests, "--folder", str(tmp_path / "run"), "-j", "1", "--time-limit", "600"]
    finished = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not findings.exists(), findings.read_text()
    assert finished.returncode == 0, finished.stdout + finished.stderr
