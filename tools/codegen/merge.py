"""Merges yaml/native_functions.yaml over upstream's native_functions.yaml.

Every mistake in the overlay is an `OverlayError` that names file and line.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from torchgen.gen import ParsedYaml, parse_native_yaml_struct, parse_tags_yaml
from torchgen.model import DeviceCheckType, FunctionSchema

from tools.codegen.upstream import PACKAGED_NATIVE, Upstream, installed, load_rows

# What the shared mechanisms ask of an operator, in words that go into the generated header.
TRAITS: dict[str, str] = {
    "host_tensors": "takes tensors on the CPU beside those on a device",
    "writes_unmarked": "writes arguments of which its schema does not say so",
    "takes_pivots": "trusts LAPACK's pivots, which count from 1",
    "rounds_numbers": "ATen's loop over lists rounds its numbers to 16 bits first",
    "in_float32": "the CPU's kernel accumulates 16-bit operands in 16 bits: it gets float32 copies",
}
_STUB = {"stub", "casts", "loop"}
_WITHOUT_KERNEL = {"host_tensors", "writes_unmarked", "in_float32", "without_host_view", "old_bytes", *_STUB}
"""Fields of a row that names no kernel."""
_OF_ANY_ROW = {"operator", "torch", "__line__"}
_ALLOWED_FIELDS = {
    *_OF_ANY_ROW,
    *(
        "kernel",
        "device_check",
        "runs",
        "shape",
        "checks",
        "weight",
        "product",
        "old_bytes",
        "waits",
        "capturable",
        "host_view",
        "direct",
        "structured",
        "without_host_view",
    ),
    *_STUB,
    *TRAITS,
}
_FUNCTIONS = {"kernel", "runs", "shape", "checks", "without_host_view", "stub", "loop"}
"""Fields that name a function."""
_OLD_BYTES = {
    "read": "kRead",
    "in_part": "kReadInPart",
    "passed_through": "kPassedThrough",
    "overwritten": "kOverwritten",
}
"""What a row says in `old_bytes`, and what csrc/core/WorkItem.h calls it."""
MAX_STUB_INPUTS = 3
"""Of so many inputs InputBytes in csrc/aten/Pointwise.h can say more than that they are read."""
CASTS = {"all": "kAll", "all_but_bool_output": "kAllButBoolOutput", "none": "kNone"}
"""What a row says in `casts`, and what csrc/aten/Pointwise.h calls it."""


class OverlayError(ValueError):
    """A row of the overlay that cannot be merged."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the overlay, checked."""

    place: str
    """File and line."""
    kernel: str
    waits: str
    """When a call waits for the device: "" for never, "always", or words of the row's own."""
    capturable: bool
    """Whether a graph can replay the operator; false for whatever always waits."""
    needs_host_view: bool
    """Whether the kernel reaches the device's memory from the host; with a driver that has no view it falls back."""
    direct: bool
    """Whether other kernels call it, as a function in at::mtia."""
    takes_list_refs: bool
    """Whether the dispatcher has lists of tensors for it as ITensorListRef, as for all that upstream has structured."""


@dataclasses.dataclass(frozen=True)
class OldBytes:
    """What a kernel does with the bytes that an argument has before."""

    use: str
    condition: str = ""
    """The argument that has to be set for it."""
    otherwise: str = ""

    def cpp(self) -> str:
        """An expression, where an argument has its name."""
        use = f"torch_mtia::core::OldBytes::{_OLD_BYTES[self.use]}"
        if not self.condition:
            return use
        return (
            f"torch_mtia::is_set({self.condition}) ? {use} : torch_mtia::core::OldBytes::{_OLD_BYTES[self.otherwise]}"
        )


@dataclasses.dataclass(frozen=True)
class CPUKernel:
    """A kernel for MTIA that runs one of ATen's CPU kernels as a work item."""

    place: str
    """File and line of its row."""
    runs: str
    """The CPU kernel."""
    writes_outputs: bool
    """The CPU kernel takes its outputs as arguments: it is that of an out= or in-place operator."""
    shape: str | None
    """The function in csrc/aten/Shapes.h that tells what the outputs are; None: a structured or in-place operator."""
    checks: str | None
    """The function in csrc/aten/Shapes.h that checks what is left to check at the call, of all arguments."""
    weight: int
    """How many times longer it takes than moving its tensors."""
    product: tuple[str, ...] = ()
    """The two arguments whose product costs the time."""
    old_bytes: Mapping[str, OldBytes] = dataclasses.field(default_factory=dict)
    """By argument: what it does with the bytes that an argument has before, where that is not the usual."""
    is_own: bool = False
    """Whether the CPU kernel is ours, in csrc/aten/CPUKernels.h."""
    is_composite: bool = False
    """Whether it is made of other operators, so that it also runs on the device's tensors."""
    in_float32: bool = False
    """Whether it gets float32 copies of 16-bit operands."""


@dataclasses.dataclass(frozen=True)
class Stub:
    """A dispatch stub of ATen's that runs the CPU's loop on a device."""

    place: str
    """File and line of its row."""
    operator: str
    """What errors and the profiler call the work."""
    name: str
    casts: str
    """Which operands the CPU's iterator of the operator casts: of `CASTS`."""
    loop: str | None
    """The loop in csrc/aten/PointwiseLoops.cpp that runs in place of the stub's own."""
    old_bytes: tuple[OldBytes, ...] = ()
    """Of its first inputs; empty: they are read."""


@dataclasses.dataclass(frozen=True)
class Traits:
    """What the rows of one operator say of it for the shared mechanisms."""

    place: str
    """File and line of its first row."""
    names: frozenset[str]
    """Of `TRAITS`."""
    in_part: str = ""
    """The argument that the CPU kernel reads in part, with which an operator without a kernel is run; "": none."""


@dataclasses.dataclass(frozen=True)
class MergedOperators:
    """Upstream's operators, with the MTIA kernels of the overlay and no others."""

    parsed: ParsedYaml
    upstream_kernels: frozenset[str]
    """Kernel names that upstream declares for the backends it compiles: ATen's own."""
    entries: dict[str, Entry]
    """By operator name: the rows of the overlay that name a kernel."""
    cpu_kernels: dict[str, CPUKernel]
    """By operator name: the kernels whose code is generated."""
    stubs: list[Stub]
    traits: dict[str, Traits]
    """By name without an overload: the operators with any."""
    without_host_view: dict[str, str]
    """By operator name: the boxed function that serves with a driver without a host view."""


def merge(overlay_path: pathlib.Path, version: Upstream | None = None) -> MergedOperators:
    """Reads the overlay and returns upstream's operators with its kernels under the MTIA key.

    Upstream is the installed PyTorch if no version is given.
    """
    version = version or installed()
    upstream = version.rows

    upstream_kernels = set()
    for row in upstream.values():
        dispatch = row.get("dispatch")
        if not isinstance(dispatch, dict):
            continue
        for keys, kernel in list(dispatch.items()):
            if keys == "__line__":
                continue
            names = [name.strip() for name in keys.split(",")]
            others = [name for name in names if name != "MTIA"]
            if others:
                upstream_kernels.add(kernel)
            if "MTIA" in names:
                del dispatch[keys]
                if others:
                    dispatch[", ".join(others)] = kernel

    seen: dict[str, int] = {}
    entries: dict[str, Entry] = {}
    cpu_kernels: dict[str, CPUKernel] = {}
    stubs: dict[str, Stub] = {}
    traits: dict[str, Traits] = {}
    without_host_view: dict[str, str] = {}
    for row in load_rows(overlay_path):
        place = f"{overlay_path}:{row['__line__']}"
        if not _is_of(version, row, place):
            continue
        func = row["func"] = _check_row(row, place, version)
        if func in seen:
            raise OverlayError(f"{place}: aten::{row['operator']} already has an entry in line {seen[func]}")
        seen[func] = row["__line__"]
        name = row["operator"]
        _add_traits(traits, name, row, place)
        _add_stub(stubs, name, row, place)
        if "without_host_view" in row:
            without_host_view[name] = _without_host_view(row, place)
        if "kernel" not in row:
            continue
        target = upstream[func]
        was_structured = "structured" in row and _make_unstructured(target, row, place)
        entries[name] = _entry(row, place, takes_list_refs=was_structured and "Tensor[]" in func)
        if "structured_delegate" in target:
            raise OverlayError(
                f"{place}: aten::{name} is structured and delegates to {target['structured_delegate']}; "
                "give that one the kernel"
            )
        if "runs" in row:
            cpu_kernels[name] = _cpu_kernel(row, place, upstream)
        elif {"shape", "checks", "weight", "product"} & set(row):
            raise OverlayError(f"{place}: `shape`, `checks`, `weight` and `product` belong to `runs`")
        elif "old_bytes" in row and "stub" not in row:
            raise OverlayError(f"{place}: `old_bytes` belongs to `runs` or `stub`")
        if "device_check" in row:
            target["device_check"] = row["device_check"]
        target.setdefault("dispatch", {"__line__": row["__line__"]})["MTIA"] = row["kernel"]

    tags = parse_tags_yaml(str(PACKAGED_NATIVE / "tags.yaml"))
    parsed = parse_native_yaml_struct(list(upstream.values()), tags, path=str(version.path))
    return MergedOperators(
        parsed,
        frozenset(upstream_kernels),
        entries,
        cpu_kernels,
        list(stubs.values()),
        {name: operator for name, operator in traits.items() if operator.names or operator.in_part},
        without_host_view,
    )


def _is_of(version: Upstream, row: dict[str, Any], place: str) -> bool:
    condition = row.get("torch", ">=0.0")
    try:
        return version.matches(str(condition))
    except ValueError:
        raise OverlayError(
            f"{place}: `torch` is the versions that have the row, as '>=2.14' or '<2.14', not {condition!r}"
        ) from None


def _check_row(row: dict[str, Any], place: str, version: Upstream) -> str:
    """Returns upstream's schema."""
    unknown = set(row) - _ALLOWED_FIELDS
    if unknown:
        known = sorted(_ALLOWED_FIELDS - {"__line__"})
        raise OverlayError(f"{place}: unknown field {sorted(unknown)}; an entry may have {known}")
    name = row.get("operator")
    if not isinstance(name, str):
        raise OverlayError(f"{place}: an entry needs `operator`, the name of one with its overload")
    if name not in version.schemas:
        raise OverlayError(f"{place}: PyTorch {version} has no operator aten::{name}")
    for field in sorted(_FUNCTIONS & row.keys()):
        names = (
            row[field].removeprefix("torch_mtia::") if field == "runs" and isinstance(row[field], str) else row[field]
        )
        if not _is_name(names):
            raise OverlayError(f"{place}: `{field}` names a function, and not {row[field]!r}")
    device_checks = [check.name for check in DeviceCheckType]
    if "device_check" in row and row["device_check"] not in device_checks:
        raise OverlayError(f"{place}: `device_check` is {' or '.join(device_checks)}, not {row['device_check']!r}")
    is_about_fallback = set(row) & _WITHOUT_KERNEL and set(row) <= {*_OF_ANY_ROW, *_WITHOUT_KERNEL}
    if "kernel" not in row and not is_about_fallback:
        raise OverlayError(f"{place}: aten::{name} needs `kernel`, the name of a function")
    return version.schemas[name]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _entry(row: dict[str, Any], place: str, *, takes_list_refs: bool) -> Entry:
    waits, capturable = row.get("waits", ""), row.get("capturable", True)
    if waits is True:
        waits = "always"
    if not isinstance(waits, str) or ("waits" in row and not waits):
        raise OverlayError(f"{place}: `waits` is True, or says when, and not {waits!r}")
    if "capturable" in row and capturable is not False:
        raise OverlayError(f"{place}: `capturable` can only be False, and not {capturable!r}")
    if row.get("host_view", False) is not False:
        raise OverlayError(f"{place}: `host_view` can only be False, and not {row['host_view']!r}")
    if row.get("direct", True) is not True:
        raise OverlayError(f"{place}: `direct` can only be True, and not {row['direct']!r}")
    return Entry(
        place,
        row["kernel"],
        waits,
        capturable=capturable and waits != "always",
        needs_host_view="host_view" not in row,
        direct="direct" in row,
        takes_list_refs=takes_list_refs,
    )


def _make_unstructured(target: dict[str, Any], row: dict[str, Any], place: str) -> bool:
    """The kernels of the row's operator do what upstream's meta function would, in every version that has one.

    Returns whether this version has one."""
    if row["structured"] is not False:
        raise OverlayError(f"{place}: `structured` can only be False, and not {row['structured']!r}")
    fields = ("structured", "structured_delegate", "structured_inherits")
    removed = [target.pop(field, None) for field in fields]
    return any(removed)


def _add_traits(traits: dict[str, Traits], name: str, row: dict[str, Any], place: str) -> None:
    given = frozenset(TRAITS.keys() & row.keys())
    for trait in sorted(given):
        if row[trait] is not True:
            raise OverlayError(f"{place}: `{trait}` can only be True, and not {row[trait]!r}")
    if "rounds_numbers" in given and "runs" not in row:
        raise OverlayError(f"{place}: `rounds_numbers` belongs to `runs`")
    base = name.partition(".")[0]
    in_part = ""
    if "kernel" not in row and "stub" not in row:
        for argument, old_bytes in _old_bytes(row, place).items():
            if in_part or old_bytes != OldBytes("in_part"):
                raise OverlayError(f"{place}: without a kernel, `old_bytes` says of one argument that it is `in_part`")
            in_part = argument
    first = traits.setdefault(base, Traits(place, given, in_part))
    if first.names != given:
        raise OverlayError(
            f"{place}: the rows of aten::{base} agree in what they say of it: {sorted(first.names ^ given)} is in one "
            f"and not in another, {first.place}"
        )


def _add_stub(stubs: dict[str, Stub], name: str, row: dict[str, Any], place: str) -> None:
    if "stub" not in row:
        if _STUB & row.keys():
            raise OverlayError(f"{place}: `casts` and `loop` belong to `stub`")
        return
    stub, casts = row["stub"], row.get("casts", "all")
    if stub in stubs:
        raise OverlayError(f"{place}: `stub: {stub}` is in another row already, {stubs[stub].place}")
    if casts not in CASTS:
        raise OverlayError(f"{place}: `casts` is {' or '.join(CASTS)}, not {casts!r}")
    old_bytes = _old_bytes(row, place)
    arguments = FunctionSchema.parse(row["func"]).arguments.flat_non_out
    inputs = [argument.name for argument in arguments if argument.type.is_tensor_like()][:MAX_STUB_INPUTS]
    numbers = [argument.name for argument in arguments if not argument.type.is_tensor_like()]
    if set(old_bytes) - {*inputs} or any(each.condition not in ("", *numbers[:1]) for each in old_bytes.values()):
        raise OverlayError(
            f"{place}: with `stub`, `old_bytes` is about the first {MAX_STUB_INPUTS} tensors, "
            "and asks for the first number"
        )
    of_inputs = tuple(old_bytes.get(each, OldBytes("read")) for each in inputs) if old_bytes else ()
    stubs[stub] = Stub(place, name.partition(".")[0], stub, casts, row.get("loop"), of_inputs)


def _old_bytes(row: dict[str, Any], place: str) -> dict[str, OldBytes]:
    arguments = {argument.name for argument in FunctionSchema.parse(row["func"]).arguments.flat_all}
    given = row.get("old_bytes", {})
    if not isinstance(given, dict):
        raise OverlayError(f"{place}: `old_bytes` says of each argument what becomes of them, not {given!r}")
    result = {}
    for name, text in given.items():
        if name == "__line__":
            continue
        words = str(text).split()
        use, condition, otherwise = words[0], "".join(words[2:3]), "".join(words[4:5])
        is_plain = len(words) == 1
        is_conditional = words[1::2] == ["if", "else"] and condition in arguments and otherwise in _OLD_BYTES
        if name not in arguments or use not in _OLD_BYTES or not (is_plain or is_conditional):
            raise OverlayError(
                f"{place}: `old_bytes` of an argument is one of {', '.join(_OLD_BYTES)}, or depends on another, as in "
                f"'read if beta else passed_through', and is not {name}: {text}"
            )
        result[name] = OldBytes(use, condition, otherwise)
    return result


def _without_host_view(row: dict[str, Any], place: str) -> str:
    if "host_view" in row:
        raise OverlayError(f"{place}: a kernel with `host_view: False` needs no `without_host_view`")
    function: str = row["without_host_view"]
    return function


def _cpu_kernel(row: dict[str, Any], place: str, upstream: dict[str, dict[str, Any]]) -> CPUKernel:
    """The CPU kernel may be that of the operator itself or of another overload: the out= one, mostly."""
    base = row["operator"].partition(".")[0]
    runs, weight = row["runs"], row.get("weight", 1)
    kernels = {
        kernel: func
        for func, upstream_row in upstream.items()
        if func.partition("(")[0].partition(".")[0] == base
        for keys, kernel in (upstream_row.get("dispatch") or {}).items()
        if {"CPU", "CompositeExplicitAutograd"} & {key.strip() for key in keys.split(",")}
    }
    own = runs.removeprefix("torch_mtia::")
    if runs != own:
        kernels[runs] = "!)" if own.endswith("_out") or "shape" not in row else ""  # else it makes its results
    if runs not in kernels:
        raise OverlayError(f"{place}: `runs: {runs}` is not a CPU kernel of aten::{base}: {sorted(kernels) or 'none'}")
    if not isinstance(weight, int) or isinstance(weight, bool) or weight < 1:
        raise OverlayError(f"{place}: `weight` is a whole number from 1, not {weight!r}")
    product = row.get("product", [])
    arguments = {argument.name for argument in FunctionSchema.parse(row["func"]).arguments.flat_all}
    if "product" in row and not (isinstance(product, list) and len(product) == 2 and arguments.issuperset(product)):
        raise OverlayError(f"{place}: `product` is two arguments of the operator, not {product!r}")
    composite = (upstream[row["func"]].get("dispatch") or {}).get("CompositeExplicitAutograd")
    return CPUKernel(
        place=place,
        runs=own,
        writes_outputs="!)" in kernels[runs],
        is_own=runs != own,
        shape=row.get("shape"),
        checks=row.get("checks"),
        weight=weight,
        product=tuple(product),
        old_bytes=_old_bytes(row, place),
        is_composite=runs == composite,
        in_float32="in_float32" in row,
    )
