"""docs/operators.md and the dispatcher say the same of the operators as yaml/native_functions.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tools.codegen.generate import ROOT
from tools.codegen.operator_dtypes import dtypes_by_overload
from tools.codegen.operator_table import DOCUMENT, DTYPES, describe_dtypes, document, operator_rows
from tools.codegen.upstream import PACKAGED_NATIVE, load_rows
from torch_mtia import torch_version
from torch_mtia._versions import SUPPORTED_TORCH


def boxed_registrations(sources: Path) -> set[str]:
    """Operators that the sources register with MTIA_LIBRARY_IMPL, beside the YAML."""
    text = "".join(path.read_text() for path in sorted(sources.glob("*.cpp")))
    blocks = re.findall(r"MTIA_LIBRARY_IMPL\(aten, kBackend, m\) \{(.*?)\n\}", text, re.DOTALL)
    return {name for block in blocks for name in re.findall(r"m\.impl\(\s*\"([\w.]+)\"", block)}


def test_the_registered_kernels_are_those_of_the_yaml() -> None:
    registered = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("MTIA")
        if name.startswith("aten::")
    }
    expected = {overload for row in operator_rows() for overload in row.overloads}
    assert registered - boxed_registrations(ROOT / "csrc" / "aten") == expected


def test_the_kernels_written_by_hand_are_those_with_a_reason() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("These kernels are written by hand:\n\n")[2].partition("\n\n")[0]
    listed = [name for line in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", line.split("|")[1])]
    assert sorted(listed) == sorted(row.name for row in operator_rows() if row.kind == "hand-written")


@pytest.mark.in_tree("upstream has names for the key MTIA")
def test_kernels_that_upstream_names_for_lists_have_these_names() -> None:
    upstream = {
        row["func"].partition("(")[0]: row["dispatch"]["MTIA"]
        for row in load_rows(PACKAGED_NATIVE / "native_functions.yaml")
        if row["func"].startswith("_foreach_") and "MTIA" in row.get("dispatch", {})
    }
    ours = {row.name: row.kernel for row in operator_rows()}
    assert len(upstream) == 22
    assert {name: ours.get(name) for name in upstream} == upstream


@pytest.mark.slow
@pytest.mark.in_tree("the table says mtia")
@pytest.mark.skipif(SUPPORTED_TORCH[0] != torch_version.TORCH, reason="the page is of the oldest version of PyTorch")
def test_the_page_is_what_the_tool_writes() -> None:
    assert DOCUMENT.read_text() == document(operator_rows(), dtypes_by_overload(DTYPES)), "run `make docs`"


def test_sets_of_dtypes_in_words() -> None:
    assert describe_dtypes({"float16", "bfloat16", "float32", "float64", "bool", "int64"}) == "floating, int64, bool"
    assert describe_dtypes(set()) == ""
