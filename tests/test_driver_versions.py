"""Drivers and callers built with different headers work together, and every list of functions is the header's.

The driver of an older header is kept in tests/older_driver. That of a later one is what `torch_mtia.new_backend`
writes, built with today's header and more in it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import torch_mtia
from torch_mtia.conformance.driver_api import CAPABILITY, CONSTANTS, FUNCTIONS, HEADER, LEAST

if TYPE_CHECKING:
    from tests.conftest import RunScript

ROOT = Path(__file__).parent.parent
HOST_DRIVER = Path(torch_mtia.__file__).parent / "lib" / "libmtia_host.so"
OLDER = ROOT / "tests" / "older_driver"
GENERATED = Path(torch_mtia.__file__).parent / "new_backend" / "package-template" / "csrc" / "driver.cpp"


def compile_driver(source: Path, library: Path, *flags: str) -> Path:
    command = ["g++", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", *flags, "-o", str(library), str(source)]
    subprocess.run([*command, "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def older_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(OLDER / "driver.cpp", tmp_path_factory.mktemp("older") / "libolder.so")


@pytest.fixture(scope="module")
def later_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("later")
    header = folder / "torch_mtia" / "runtime" / "mtia_runtime.h"
    header.parent.mkdir(parents=True)
    text = HEADER.read_text()
    for name in LEAST:
        assert f"\n}} {name};" in text
        text = text.replace(f"\n}} {name};", f"\n  uint64_t added[9];\n}} {name};")
    end = "\n} mtia_runtime_api;"
    assert end in text
    text = text.replace(end, f"\n  mtia_status (*added)(void);{end}")
    header.write_text(text)
    source = folder / "driver.cpp"
    driver = GENERATED.read_text().replace("@NAME@", "later")
    names = "api.capabilities = MTIA_CAPABILITY_HOST_VIEW;"
    assert driver.count(names) == 1
    source.write_text(
        driver.replace(
            names,
            "api.capabilities = MTIA_CAPABILITY_HOST_VIEW | (UINT64_C(1) << 40);\n"
            "  api.added = [] { return MTIA_SUCCESS; };",
        )
    )
    return compile_driver(source, folder / "liblater.so", f"-I{folder}")


WORK = """
    import torch, torch_mtia
    x = torch.arange(6., device="mtia")
    assert (x + 1).cumsum(0).tolist() == [1, 3, 6, 10, 15, 21]
    with torch.Stream("mtia", priority=-1) as stream:
        y = x * 2
    stream.synchronize()
    torch.mtia.synchronize()
    assert y.cpu().sum() == 30
    assert torch.mtia.get_device_properties(0).name
    with torch.profiler.profile():
        x + 1
"""
GRAPH = """
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        z = x + 1
    graph.replay()
    torch.mtia.synchronize()
    assert z.tolist() == [1, 2, 3, 4, 5, 6]
"""


@pytest.mark.in_tree("the script uses torch.mtia")
def test_a_driver_of_an_older_header_is_used_with_all_that_it_can_do(run_script: RunScript, older_driver: Path) -> None:
    script = WORK + GRAPH + '    print(*torch_mtia._C._driver_info()["capabilities"])\n'
    finished = run_script(script, TORCH_MTIA_RUNTIME=str(older_driver), MTIA_TEST_DRIVER=str(HOST_DRIVER))
    assert finished.output().split() == ["host_view", "kernels", "graphs", "rare_functions", "virtual_memory"]


@pytest.mark.in_tree("the script uses torch.mtia")
def test_a_driver_of_a_later_header_is_used_as_far_as_it_is_known(run_script: RunScript, later_driver: Path) -> None:
    script = WORK + '    print(*torch_mtia._C._driver_info()["capabilities"])\n'
    finished = run_script(script, TORCH_MTIA_RUNTIME=str(later_driver))
    assert finished.output().split() == ["host_view"]


@pytest.mark.in_tree("the script uses torch.mtia")
def test_a_driver_without_shared_memory_sends_copies(run_script: RunScript, older_driver: Path) -> None:
    script = """
        import pickle, torch
        from multiprocessing.reduction import ForkingPickler
        import torch.multiprocessing
        x = torch.arange(6., device="mtia")
        received = pickle.loads(ForkingPickler.dumps(x))
        received.add_(1)
        print(x.tolist(), received.tolist())
    """
    finished = run_script(script, TORCH_MTIA_RUNTIME=str(older_driver), MTIA_TEST_DRIVER=str(HOST_DRIVER))
    assert finished.output() == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0] [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n"


@pytest.mark.in_tree("the script uses torch.mtia")
def test_what_needs_functions_that_a_driver_lacks_says_so(run_script: RunScript, later_driver: Path) -> None:
    script = """
        import os, sys
        import torch, torch_mtia
        sys.path.insert(0, os.environ["EXAMPLES"])
        from triton_vector_add import add
        x = torch.ones(1 << 20, device="mtia")
        def capture():
            graph = torch.mtia.MTIAGraph()
            with torch.mtia.graph(graph):
                x + 1
        for call in (capture, lambda: add(x, x)):
            try:
                call()
            except NotImplementedError as error:
                print(error)
        assert (x + 1).sum() == 2 << 20
    """
    finished = run_script(
        script,
        TORCH_MTIA_RUNTIME=str(later_driver),
        PYTORCH_ALLOC_CONF="expandable_segments:True",
        EXAMPLES=str(ROOT / "examples"),
    )
    graphs, kernels = finished.output().splitlines()
    assert "driver 'later' has no graphs (MTIA_CAPABILITY_GRAPHS)" in graphs
    assert "driver 'later' does not load kernels (MTIA_CAPABILITY_KERNELS)" in kernels


def structs(header: Path) -> dict[str, list[str]]:
    """The declarations in each struct, without comments and blanks."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    found = re.finditer(r"typedef struct (\w+) \{(.*?)\n\}", text, re.DOTALL)
    return {match[1]: [" ".join(line.split()) for line in match[2].split(";") if line.strip()] for match in found}


def test_the_header_has_only_grown() -> None:
    today = structs(HEADER)
    for name, declarations in structs(OLDER / "mtia_runtime.h").items():
        may_grow = declarations[0] == "uint32_t struct_size"
        assert (today[name][: len(declarations)] if may_grow else today[name]) == declarations


def test_what_the_header_appends_belongs_to_no_older_capability() -> None:
    older = structs(OLDER / "mtia_runtime.h")["mtia_runtime_api"]
    capabilities = set(re.findall(r"MTIA_CAPABILITY_(\w+)", (OLDER / "mtia_runtime.h").read_text()))
    appended = list(FUNCTIONS)[sum("(*" in declaration for declaration in older) :]
    assert "set_tracer" in appended
    for function in appended:
        assert CAPABILITY[function] not in {*capabilities, None}


def test_the_headers_lists_are_of_what_it_declares() -> None:
    text = HEADER.read_text()
    assert re.findall(r" FUNCTION\((\w+), ", text) == list(FUNCTIONS)
    listed = re.findall(r" CAPABILITY\((\w+)\)", text)
    assert [f"MTIA_CAPABILITY_{name}" for name in listed] == [
        name for name in CONSTANTS if name.startswith("MTIA_CAPABILITY_")
    ]
    assert {name for name in CAPABILITY.values() if name} <= set(listed)
    sized = {name for name, fields in structs(HEADER).items() if fields[0] == "uint32_t struct_size"}
    assert LEAST.keys() == sized - {"mtia_runtime_api", "mtia_kernel_context"}


def test_optional_functions_say_so_where_they_are_declared() -> None:
    table = HEADER.read_text().partition("typedef struct mtia_runtime_api {")[2].partition("\n}")[0]
    groups = re.findall(r"((?:/\*(?:(?!\*/).)*\*/\s*)?)((?:mtia_status \(\*\w+\)\([^;]*;\s*)+)", table, re.DOTALL)
    optional = {
        name
        for comment, declarations in groups
        if "OPTIONAL" in comment
        for name in re.findall(r"\(\*(\w+)\)", declarations)
    }
    assert CAPABILITY.keys() - optional == {"graph_destroy", "graph_instantiate", "graph_launch", "graph_exec_destroy"}


def test_the_documentation_says_what_is_missing_without_each_capability() -> None:
    text = (ROOT / "docs" / "driver.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| (.*) \|$", text, flags=re.MULTILINE)
    listed = re.findall(r" CAPABILITY\((\w+)\)", HEADER.read_text())
    assert [name.upper().replace(" ", "_") for name, _ in rows if name != "capability"] == listed
