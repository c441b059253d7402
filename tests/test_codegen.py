"""Every mistake in yaml/native_functions.yaml stops the build with a message that names file and line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torchgen.gen import get_grouped_native_functions
from torchgen.model import DispatchKey, NativeFunctionsGroup

from tools.codegen.generate import OVERLAY, generate
from tools.codegen.merge import OverlayError, merge
from tools.codegen.registration import registrations

pytestmark = pytest.mark.in_tree("the source of kernels names one key")

RELU, CUMSUM_OUT, FILL = "relu", "cumsum.out", "fill_.Scalar"


def row(operator: str, kernel: str = "relu_mtia", **fields: object) -> str:
    lines = [f"- operator: {operator}", f"  kernel: {kernel}"]
    return "\n".join([*lines, *(f"  {name}: {value}" for name, value in fields.items())]) + "\n"


MISTAKES: dict[str, tuple[str, str]] = {
    "unknown operator": (row("rellu"), "has no operator aten::rellu"),
    "unknown overload": (row("relu.out_of"), "has no operator aten::relu.out_of"),
    "a schema": (row("relu(Tensor self) -> Tensor"), "has no operator aten::relu(Tensor self) -> Tensor"),
    "no operator": ("- kernel: relu_mtia\n", "an entry needs `operator`, the name of one with its overload"),
    "the operator by another name": ("- func: relu\n  kernel: relu_mtia\n", "unknown field ['func']"),
    "no kernel": (f"- operator: {RELU}\n", "aten::relu needs `kernel`, the name of a function"),
    "unknown field": (row(RELU, variants="function"), "unknown field ['variants']"),
    "duplicate": (row(RELU) + row(RELU), "aten::relu already has an entry in line 1"),
    "delegate": (
        row("add.Tensor"),
        "aten::add.Tensor is structured and delegates to add.out",
    ),
    "runs what is no kernel of the operator": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumprod_out"),
        "`runs: cumprod_out` is not a CPU kernel of aten::cumsum: ['cumsum_out']",
    ),
    "runs, and there is no CPU kernel": (
        row("argsort", "argsort_mtia", runs="argsort"),
        "`runs: argsort` is not a CPU kernel of aten::argsort: none",
    ),
    "runs on an operator that makes its results": (
        row(RELU, "relu_mtia", runs="relu"),
        "aten::relu makes or resizes tensors and is not structured",
    ),
    "weight of zero": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", weight=0),
        "`weight` is a whole number from 1, not 0",
    ),
    "weight in words": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", weight="heavy"),
        "`weight` is a whole number from 1, not 'heavy'",
    ),
    "weight of true": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", weight=True),
        "`weight` is a whole number from 1, not True",
    ),
    "a shape that is no name": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", shape=[1]),
        "`shape` names a function, and not [1]",
    ),
    "checks of nothing": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", checks=""),
        "`checks` names a function, and not None",
    ),
    "runs a mapping": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs={"CPU": "cumsum_out"}),
        "`runs` names a function, and not {'CPU': 'cumsum_out'",
    ),
    "a kernel that is no name": (
        row(RELU, kernel="[1]"),
        "`kernel` names a function, and not [1]",
    ),
    "a check of devices that there is none of": (
        row(RELU, device_check="Nope"),
        "`device_check` is NoCheck or ExactSame, not 'Nope'",
    ),
    "casts without a stub": (row(RELU, casts="none"), "`casts` and `loop` belong to `stub`"),
    "casts that there are none of": (
        row(RELU, stub="relu_stub", casts="some"),
        "`casts` is all or all_but_bool_output or none, not 'some'",
    ),
    "a stub of two rows": (
        row(RELU, stub="abs_stub") + row(FILL, "fill_", stub="abs_stub"),
        "`stub: abs_stub` is in another row already",
    ),
    "a product of what are no arguments": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", product="[self, mat2]"),
        "`product` is two arguments of the operator, not ['self', 'mat2']",
    ),
    "weight without runs": (
        row(RELU, weight=2),
        "`shape`, `checks`, `weight` and `product` belong to `runs`",
    ),
    "old bytes without a kernel that has any": (
        row(RELU, old_bytes="{self: read}"),
        "`old_bytes` belongs to `runs` or `stub`",
    ),
    "old bytes of an operator without a kernel that are not read in part": (
        f"- operator: {RELU}\n  old_bytes: {{self: passed_through}}\n",
        "without a kernel, `old_bytes` says of one argument that it is `in_part`",
    ),
    "old bytes of what is no argument": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", old_bytes="{other: in_part}"),
        "`old_bytes` of an argument is one of read, in_part, passed_through, overwritten, or depends on another, as in "
        "'read if beta else passed_through', and is not other: in_part",
    ),
    "old bytes that depend on what is no argument": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", old_bytes="{self: read if beta else passed_through}"),
        "and is not self: read if beta else passed_through",
    ),
    "old bytes in a word that nobody knows": (
        row(CUMSUM_OUT, "cumsum_out_mtia", runs="cumsum_out", old_bytes="{self: gone}"),
        "and is not self: gone",
    ),
    "old bytes of a stub that depend on a later number": (
        row(FILL, "fill_", stub="fill_stub", old_bytes="{value: passed_through}"),
        "with `stub`, `old_bytes` is about the first 3 tensors, and asks for the first number",
    ),
    "waits, and does not": (row(RELU, waits=False), "`waits` is True, or says when, and not False"),
    "capturable by assertion": (row(RELU, capturable=True), "`capturable` can only be False, and not True"),
    "a trait by denial": (row(RELU, takes_pivots=False), "`takes_pivots` can only be True, and not False"),
    "a trait of generated kernels": (row(RELU, rounds_numbers=True), "`rounds_numbers` belongs to `runs`"),
    "a trait of a kernel, and no kernel": (
        f"- operator: {RELU}\n  takes_pivots: True\n",
        "aten::relu needs `kernel`, the name of a function",
    ),
    "no function for drivers without a host view": (
        row(RELU, without_host_view=True),
        "`without_host_view` names a function, and not True",
    ),
    "two answers for drivers without a host view": (
        row(RELU, host_view=False, without_host_view="fall_back"),
        "a kernel with `host_view: False` needs no `without_host_view`",
    ),
    "structured by assertion": (row(RELU, structured=True), "`structured` can only be False, and not True"),
    "direct by denial": (row(RELU, direct=False), "`direct` can only be True, and not False"),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_that_names_file_and_line(tmp_path: Path, mistake: str) -> None:
    text, message = MISTAKES[mistake]
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(text)
    with pytest.raises(OverlayError) as caught:
        generate(tmp_path / "generated", overlay)
    line = {"duplicate": 3, "a stub of two rows": 4}.get(mistake, 1)
    assert str(caught.value).startswith(f"{overlay}:{line}: ")
    assert message in str(caught.value)
    assert not (tmp_path / "generated").exists()


def test_the_line_is_that_of_the_entry(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("# a comment\n\n" + row(RELU) + "\n" + row("rellu"))
    with pytest.raises(OverlayError, match=rf"^{overlay}:6: "):
        merge(overlay)


def test_files_that_do_not_change_are_not_touched(tmp_path: Path) -> None:
    first = generate(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert generate(tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_when_calls_wait(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    entries = {}
    for waits in ("True", "if one side is the CPU"):
        overlay.write_text(row(RELU, waits=waits))
        entries[waits] = merge(overlay).entries["relu"]
    assert [(entry.waits, entry.capturable) for entry in entries.values()] == [
        ("always", False),
        ("if one side is the CPU", True),
    ]


def test_the_rows_of_an_operator_agree_in_its_traits(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(row(FILL, "fill_", host_tensors=True) + row("fill_.Tensor", "fill_"))
    with pytest.raises(OverlayError, match=rf"^{overlay}:4: .*'host_tensors'.* {overlay}:1$"):
        merge(overlay)


def test_what_rows_say_of_operators_is_one_table(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(
        row(FILL, "fill_", writes_unmarked=True, host_tensors=True, without_host_view="fill")
        + "- {operator: _unsafe_index.Tensor, host_tensors: True}\n"
        + row("zero_", "zero_")
    )
    generate(tmp_path, overlay)
    assert [line for line in (tmp_path / "OperatorTraits.h").read_text().splitlines() if "aten::" in line] == [
        '    {"aten::_unsafe_index", {.host_tensors = true}},',
        '    {"aten::fill_", {.host_tensors = true, .writes_unmarked = true}},',
    ]
    registered = (tmp_path / "RegisterNoHostView.cpp").read_text()
    assert registered.count("m.impl(") == 1
    assert 'm.impl("fill_.Scalar", torch::CppFunction::makeFromBoxedFunction<&torch_mtia::fill>());' in registered


def test_float32_copies_are_for_kernels_of_atens(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    for runs, is_widened in (("cumsum_out", True), ("torch_mtia::cumsum_out", False)):
        overlay.write_text(row(CUMSUM_OUT, "cumsum_out_mtia", runs=runs, in_float32=True))
        generate(tmp_path, overlay)
        kernels = "".join(path.read_text() for path in tmp_path.glob("CPUKernels_*.cpp"))
        assert ("in_float32" in kernels) == is_widened
        assert '{"aten::cumsum", {.in_float32 = true}}' in (tmp_path / "OperatorTraits.h").read_text()


def test_a_row_without_a_kernel_registers_none(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(row(RELU, "relu") + "- {operator: copy_, host_tensors: True}\n")
    merged = merge(overlay)
    assert merged.entries.keys() == {"relu"}
    assert merged.traits["copy_"].names == {"host_tensors"}


def test_the_overlay_of_the_package_is_free_of_mistakes() -> None:
    assert merge(OVERLAY).entries


def test_registrations_in_words_that_nobody_expects_are_an_error() -> None:
    merged = merge(OVERLAY)
    index = merged.parsed.backend_indices[DispatchKey.MTIA]
    groups = get_grouped_native_functions(merged.parsed.native_functions)
    relu = [group for group in groups if group.root_name == "relu" and isinstance(group, NativeFunctionsGroup)]
    line = 'm.impl("relu", TORCH_FN(wrapper_relu));'
    both = [line, 'm.impl("relu_",\nTORCH_FN(wrapper_relu_));']
    assert registrations(relu, index, both) == {"relu": "wrapper_relu", "relu_": "wrapper_relu_"}
    for texts, message in (
        ([line], r"leaves out: \['relu_'\]"),
        ([*both, 'm.impl("rely", TORCH_FN(wrapper_rely));'], r"leaves out: \['rely'\]"),
        ([*both, line], "not expected here"),
        ([*both, "m.fallback(everything);"], "not expected here"),
    ):
        with pytest.raises(OverlayError, match=message):
            registrations(relu, index, texts)


def test_sources_are_generated_before_there_is_a_package_to_import() -> None:
    """setup.py runs this in a fresh clone."""
    script = "import sys, tools.codegen.generate; sys.exit('torch_mtia' in sys.modules)"
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(OVERLAY.parents[1])}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
