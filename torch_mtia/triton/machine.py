"""From LLVM IR to machine code, through llvmlite: which CPU features a target has, the passes, the object file."""

from __future__ import annotations

import dataclasses
import functools
import platform
import re
from collections.abc import Callable
from typing import Any

try:
    import llvmlite
    import llvmlite.binding as llvm
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "kernels for mtia are compiled with the LLVM in the package llvmlite, which is not installed: "
        "pip install 'torch_mtia[triton]'",
        name=error.name,
    ) from error

from torch_mtia.triton import abi

_X86_64, _AARCH64 = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


@dataclasses.dataclass(frozen=True)
class Level:
    """What code for one of the levels of architecture.py may use."""

    cpu: str  # LLVM's name
    lanes: int  # of a strip
    features: frozenset[str]  # what the emitter asks about:
    # half       conversions to and from half precision
    # fma        products and sums rounded once
    # rounding   to whole numbers
    # cas16      comparing and exchanging 16 bytes
    # sse, avx512, vnni, bf16, amx   x86's instructions of these names
    image_features: int  # mtia_kernel_image_header.cpu_features
    vector_bits: int
    extensions: str = ""  # in LLVM's spelling
    triple: str = _X86_64


_PLAIN = frozenset({"half", "fma", "rounding", "cas16"})
_V4 = Level(
    "x86-64-v4",
    16,
    _PLAIN | {"sse", "avx512"},
    abi.CPU_AVX2_FMA | abi.CPU_AVX512_SKX,
    512,
)
_VNNI = dataclasses.replace(
    _V4,
    features=_V4.features | {"vnni"},
    image_features=_V4.image_features | abi.CPU_AVX512_VNNI,
    extensions="+avx512vnni",
)
_BF16 = dataclasses.replace(
    _VNNI,
    features=_VNNI.features | {"bf16"},
    image_features=_VNNI.image_features | abi.CPU_AVX512_BF16,
    extensions=f"{_VNNI.extensions},+avx512bf16",
)
LEVELS = {
    "x86-64": Level("x86-64", 4, frozenset({"sse"}), 0, 128),
    "x86-64-v3": Level("x86-64-v3", 8, _PLAIN | {"sse"}, abi.CPU_AVX2_FMA, 256),
    "x86-64-v4": _V4,
    "x86-64-v4-vnni": _VNNI,
    "x86-64-v4-bf16": _BF16,
    "x86-64-v4-amx": dataclasses.replace(
        _BF16,
        features=_BF16.features | {"amx"},
        image_features=_BF16.image_features | abi.CPU_AMX_BF16 | abi.CPU_AMX_INT8,
        extensions=f"{_BF16.extensions},+amx-tile,+amx-bf16,+amx-int8",
    ),
    "aarch64": Level("generic", 4, _PLAIN, abi.CPU_AARCH64, 128, triple=_AARCH64),
}


def level(architecture: str) -> Level:
    found = LEVELS.get(architecture)
    if found is None:
        raise ValueError(f"architecture {architecture!r} is not known; valid: {', '.join(LEVELS)}")
    return found


def version() -> str:
    return f"llvmlite {llvmlite.__version__}, LLVM {'.'.join(map(str, llvm.llvm_version_info))}"


@functools.cache
def _initialize() -> None:
    # Looking for phis of operations, LLVM 22's NewGVN ends the process on some loops. The option is the process's, for
    # NewGVN has no other: docs/upstream/newgvn_phi_of_operations.md. No pipeline of LLVM's runs NewGVN, so what others
    # compile with llvmlite, as Numba does, stays as it is.
    llvm.set_option("torch_mtia", "-enable-phi-of-ops=false")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


@functools.cache
def _target_machine(architecture: str) -> Any:
    _initialize()
    of = level(architecture)
    if of.triple.partition("-")[0] != platform.machine():
        # llvmlite has code generators for all processors, but an assembler only for the one it runs on.
        raise ValueError(f"code for {architecture} cannot be made on {platform.machine()}")
    return llvm.Target.from_triple(of.triple).create_target_machine(
        cpu=of.cpu,
        features=of.extensions,
        opt=2,
        reloc="pic",
        codemodel="small",
        jit=False,
    )


@functools.cache
def data_layout(architecture: str) -> str:
    return str(_target_machine(architecture).target_data)


def attributes(architecture: str) -> str:
    """Attributes of every function: no calls into a C library that is not there, and vectors of the full width."""
    of = level(architecture)
    bits = of.vector_bits
    extensions = f'"target-features"="{of.extensions}" ' if of.extensions else ""
    return (
        f'attributes #0 = {{ nounwind "no-builtins" "target-cpu"="{of.cpu}" {extensions}'
        f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" }}'
    )


class CompileError(Exception):
    """LLVM refused what the emitter or one of its own passes wrote."""


def _verified(text: str) -> Any:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(str(error)) from None
    return module


def optimize(text: str, architecture: str) -> str:
    """The module, verified and optimized."""
    machine = _target_machine(architecture)
    module = _verified(text)
    # The emitter has done what LLVM's own pipeline would spend most of its time on: loops are vector code, and nothing
    # needs inlining. What invariant code is left in them, the code generator moves out.
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.add_instruction_combine_pass()
    manager.add_new_gvn_pass()
    manager.add_simplify_cfg_pass()
    manager.add_dead_code_elimination_pass()
    manager.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1)))
    return corrected(str(module), architecture)


# Corrections ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Correction:
    """LLVM IR that LLVM 22 makes wrong code of, or none, for vectors of some sizes, and what takes its place."""

    issue: str  # docs/upstream/ISSUE.md
    pattern: re.Pattern[str]
    replacement: Callable[[re.Match[str]], str]
    vector_bits: tuple[int, ...]


def corrected(text: str, architecture: str) -> str:
    """The module in the text of LLVM IR, without what LLVM would make wrong code of."""
    for correction in CORRECTIONS:
        if level(architecture).vector_bits in correction.vector_bits:
            text = correction.pattern.sub(correction.replacement, text)
    return text


def _store_one_lane(match: re.Match[str]) -> str:
    """A masked store of one lane, as a plain one."""
    element, vector, value, address, mask = match.groups()
    lanes = [number for number, lane in enumerate(mask.split(", ")) if lane != "i1 false"]
    if len(lanes) != 1:
        return match[0]
    name = f"%lane.{match.start()}"
    return (
        f"  {name} = extractelement {vector} {value}, i64 {lanes[0]}\n"
        f"  {name}.address = getelementptr {element}, ptr {address}, i64 {lanes[0]}\n"
        f"  store {element} {name}, ptr {name}.address, align 1"
    )


def _is_at_most_minus_one(match: re.Match[str]) -> str:
    value, element = match.groups()
    return f"icmp sle {value}, splat ({element} -1)"


def _hide_mask(match: re.Match[str]) -> str:
    """A wide masked load with a mask that the code generator knows nothing about."""
    call, lanes, element, mask = match.groups()
    if int(lanes) * int(element) <= 256:
        return match[0]
    name, integers = f"%mask.{match.start()}", f"<{lanes} x i{max(128 // int(lanes), 8)}>"
    return (
        f"  {name}.wide = sext <{lanes} x i1> {mask} to {integers}\n"
        f'  {name}.hidden = call {integers} asm "", "=x,0"({integers} {name}.wide)\n'
        f"  {name} = icmp slt {integers} {name}.hidden, zeroinitializer\n"
        f"{call}<{lanes} x i1> {name}"
    )


CORRECTIONS = (
    # A masked store of one lane, if the value is truncated, writes over the neighbours.
    Correction(
        "masked_store_of_one_lane",
        re.compile(
            r"  call void @llvm\.masked\.store\.v\d+(i\d+)\.p0\((<\d+ x i\d+>) ([^,]+), ptr (?:align \d+ )?([^,]+), "
            r"<\d+ x i1> <((?:i1 \w+(?:, )?)+)>\)"
        ),
        _store_one_lane,
        (128, 256, 512),
    ),
    # A test of signs may become vmovmskps of an upper register, which it has no encoding for: the process ends.
    Correction(
        "signs_of_upper_registers",
        re.compile(r"icmp slt (<\d+ x (i\d+)> [^,\n]+), zeroinitializer"),
        _is_at_most_minus_one,
        (512,),
    ),
    # A masked load of more than one register is divided. Where the mask of one part is false throughout, that part is
    # loaded without a mask, or the code generator crashes.
    Correction(
        "masked_load_of_two_registers",
        re.compile(
            r"(  %[\w.]+ = call <(\d+) x \w+> @llvm\.masked\.load\.v\d+[if](\d+)\.p0\(ptr [^,]+, )"
            r"<\d+ x i1> (%[\w.]+)"
        ),
        _hide_mask,
        (256,),
    ),
)


def assembly(text: str, architecture: str) -> str:
    """Machine code of LLVM IR, as text. Verified once more: what LLVM's own passes get wrong would end the process."""
    return str(_target_machine(architecture).emit_assembly(_verified(text)))


def assemble(text: str, architecture: str) -> bytes:
    """The object file of machine code as text. LLVM assembles what a module holds as `module asm`; generating code from
    the IR a second time would take ten times longer."""
    escaped = text.replace("\\", "\\5C").replace('"', "\\22")
    lines = "\n".join(f'module asm "{line}"' for line in escaped.splitlines())
    module = llvm.parse_assembly(f'target triple = "{level(architecture).triple}"\n{lines}')
    return bytes(_target_machine(architecture).emit_object(module))
