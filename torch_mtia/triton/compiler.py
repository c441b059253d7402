"""Triton's backend `mtia`: from TTIR to a kernel image, in stages.

ttir      Triton's passes on its own dialect
plan      parsed (ir/), which loops there will be, and what is kept where (plan/, by what analyses/ find out)
llir      the code for it (emit/), optimized (machine.py): text of LLVM IR
asm       text of machine code, by LLVM
mtiabin   that text, assembled, as a kernel image (image.py)

The first line of `llir` and of `asm` describes the kernel to the last stage, see DESCRIPTION.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.backends.compiler import BaseBackend, GPUTarget

from torch_mtia import environment
from torch_mtia.source_digest import source_digest
from torch_mtia.torch_version import fuses_products, rewrite_block_pointers, run_passes
from torch_mtia.triton import abi, emulated_target
from torch_mtia.triton.architecture import architecture
from torch_mtia.triton.ir.simplify import UNIT

if TYPE_CHECKING:
    from torch_mtia.triton.plan.plan import Plan

# Kind and size of each argument, bytes of scratch memory, estimated nanoseconds of one program.
DESCRIPTION = re.compile(r"[;#] mtia arguments=(\S*) scratch=(\d+) cost=(\d+)\n")
_DESCRIPTOR = re.compile(r"!tt\.tensordesc<(?:tensor<)?((?:\d+x)+)")


@dataclasses.dataclass(frozen=True)
class MTIAOptions:
    """What `kernel[grid](..., option=value)` may say. Options that only a GPU has are accepted and do nothing."""

    arch: str = "x86-64"
    backend_name: str = "mtia"
    given: tuple[str, ...] = ()  # names of the options that a launch gave: for all others, targets have own defaults
    follow_numbers: bool = False  # with `instrument`: so that what makes NaN or infinity is traced
    instrument: bool = False  # so that accesses can be watched: Note [Watched kernels] in mtia_runtime.h
    count: bool = False  # with `instrument`: so that entered blocks are counted, and operations by them
    order: int = 0  # a seed of the order in which programs run; 0: that of their numbers
    emulate: str = ""  # a GPU, as "cuda:90": products and conversions as it computes them
    instrumented_program: str = ""  # code names the files of its source, which a copy of a program has elsewhere
    debug: bool = False
    sanitize_overflow: bool = True
    enable_fp_fusion: bool = True
    saturate_fp8: bool = True  # what is too large becomes the largest number; if not, what PyTorch makes of it
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6", "hf32")
    supported_fp8_dtypes: tuple[str, ...] = ("fp8e5", "fp8e4nv", "fp8e4b15", "fp8e4b8", "fp8e5b16")
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    max_num_imprecise_acc_default: int = 0
    num_warps: int = 4
    num_ctas: int = 1
    num_stages: int = 3
    warp_size: int = 32
    cluster_dims: tuple[int, int, int] = (1, 1, 1)
    maxnreg: int | None = None
    min_shared_mem: int | None = None
    extern_libs: tuple[Any, ...] | None = None
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    ir_override: str | None = None
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    clc: bool = False
    sched4reg: bool = False
    ptx_version: int | None = None
    ptx_options: str | None = None
    enable_reflect_ftz: bool = True
    waves_per_eu: int = 0
    matrix_instr_nonkdim: int = 0
    kpack: int = 1
    allow_flush_denorm: bool = False
    schedule_hint: str = "none"

    def hash(self) -> str:
        text = "_".join(f"{name}-{value}" for name, value in sorted(dataclasses.asdict(self).items()))
        if self.ir_override is not None and os.path.isfile(self.ir_override):
            text += Path(self.ir_override).read_text()
        return hashlib.sha256(text.encode()).hexdigest()


OPTION_NAMES = frozenset(field.name for field in dataclasses.fields(MTIAOptions))


def _compilation_error(message: str, file: str, line: int) -> Exception:
    """A CompilationError that shows the kernel's line."""
    from triton.compiler.errors import CompilationError

    class Node:
        lineno = line
        col_offset = 0

    source = None
    if file and os.path.isfile(file):
        source = Path(file).read_text(errors="replace")
    error = CompilationError(source, Node(), message)
    error.message = error.message if not file else f"{file}:{line}: {error.message}"
    return error  # type: ignore[no-any-return]


# What finds on mtia what an instrumentation of Triton's finds on GPUs.
_IN_PLACE_OF_INSTRUMENTATION = {
    "consan": "races between programs: python -m torch_mtia.sanitize --checks kernels. A program has one thread here, "
    "and no shared memory",
    "gsan": "races between programs: python -m torch_mtia.sanitize --checks kernels",
    "iisan": "accesses outside of a tensor: python -m torch_mtia.sanitize --checks memory",
    "fpsan": "rewritten floating-point arithmetic: it is not available",
}


def _refuse_instrumentation(mode: str) -> None:
    found = [f"{name} ({instead})" for name, instead in _IN_PLACE_OF_INSTRUMENTATION.items() if name in mode]
    raise RuntimeError(
        f"TRITON_INSTRUMENTATION_MODE={mode} is for GPUs, and kernels on mtia would run without it. Unset it. On mtia: "
        + "; ".join(found or [f"nothing is known of {mode!r}"])
    )


# Called with the file, the line and the reason when mtia does not compile a kernel that Triton's front end accepts.
refusal_observers: list[Callable[[str, int, str], None]] = []


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Around what goes through a kernel, and may find that it cannot compile it."""
    from torch_mtia.triton.ir.module import Unsupported

    try:
        yield
    except Unsupported as error:
        file, line = error.location or ("", 0)
        for observe in refusal_observers:
            observe(file, line, error.message)
        raise _compilation_error(error.message, file, line) from None


@dataclasses.dataclass(frozen=True, eq=False)
class PlanStage:
    """A plan, with the text that Triton keeps of it."""

    plan: Plan
    text: str

    def __str__(self) -> str:
        return self.text


# Note [Same code]
# Options that only a GPU has, such as num_warps, reach no stage but the first, Triton's, which writes them nowhere
# unless the kernel asks for them. So configurations that differ in these alone have the same TTIR, and what follows is
# remembered by what it is made of: the functions below take nothing else.
_remembered = functools.lru_cache(maxsize=32)


@_remembered
def _planned(
    text: str,
    arch: str,
    *,
    contracts: bool,
    count: bool,
    instrument: bool,
    follow_numbers: bool,
    order: int,
    emulated: str,
) -> PlanStage:
    from torch_mtia.triton import machine
    from torch_mtia.triton.ir import parser
    from torch_mtia.triton.ir.emulation import emulate
    from torch_mtia.triton.ir.simplify import simplify
    from torch_mtia.triton.plan.instrumentation import ENTERED_BLOCKS, read_once
    from torch_mtia.triton.plan.program import plan_kernel
    from torch_mtia.triton.plan.text import plan_text

    parsed = parser.parse(text)
    level = machine.level(arch)
    if emulated:
        emulate(parsed, emulated_target.numerics(emulated))
    if count:  # the blocks of the source, and each of its loads once
        read_once(parsed)
    else:
        simplify(parsed, contracts=contracts and "fma" in level.features)
    plan = plan_kernel(parsed, level.lanes, level.features, instrument, follow_numbers, order)
    if count:
        plan = dataclasses.replace(plan, counts=ENTERED_BLOCKS)
    return PlanStage(plan, plan_text(plan))


@_remembered
def _emitted(stage: PlanStage, arch: str, saturate_fp8: bool) -> str:
    from torch_mtia.triton import machine
    from torch_mtia.triton.emit.program import emit_program

    program = emit_program(stage.plan, arch, saturate_fp8)
    arguments = ",".join(f"{kind}:{size}" for kind, size in program.arguments)
    header = f"; mtia arguments={arguments} scratch={stage.plan.scratch_size} cost={stage.plan.cost}\n"
    return header + machine.optimize(program.text, arch)


@_remembered
def _assembly(source: str, arch: str) -> str:
    from torch_mtia.triton import machine

    description, _, _ = source.partition("\n")
    return f"#{description[1:]}\n{machine.assembly(source, arch)}"


@_remembered
def _object(source: str, arch: str) -> bytes:
    from torch_mtia.triton import machine

    return machine.assemble(source, arch)


class MTIABackend(BaseBackend):
    binary_ext = "mtiabin"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        """Inductor names the target after the type of the tensors, which need not be mtia."""
        return target.backend in ("mtia", environment.device_type())

    def __init__(self, target: GPUTarget) -> None:
        super().__init__(target)
        self.binary_ext = "mtiabin"

    def hash(self) -> str:
        from torch_mtia.triton import machine

        # With the name: a cached kernel has a target of that name, for which another process may have no backend.
        target = f"{self.target.backend}-{self.target.arch}"
        return f"{target}-{abi.KERNEL_IMAGE_VERSION}-{machine.version()}-{source_digest('triton')}"

    def parse_options(self, opts: dict[str, Any]) -> MTIAOptions:
        arguments = {name: value for name, value in opts.items() if name in OPTION_NAMES and value is not None}
        arguments.setdefault("given", tuple(sorted(arguments)))
        # Inductor's targets may have a capability, a pair of numbers, in the place of an architecture.
        arch = self.target.arch if isinstance(self.target.arch, str) else architecture()
        arguments.setdefault("arch", str(knobs.runtime.override_arch or arch))
        arguments.setdefault("order", environment.settings().order)
        arguments.setdefault("emulate", environment.settings().emulate)
        if arguments["emulate"]:
            arguments = {**emulated_target.front_end(arguments["emulate"], arguments), **arguments}
        arguments.setdefault("instrument", environment.kernels_are_watched())
        arguments.setdefault("follow_numbers", environment.numbers_are_watched())
        if arguments["instrument"]:
            arguments.setdefault("instrumented_program", os.path.abspath(sys.argv[0] if sys.argv else ""))
        arguments["enable_fp_fusion"] = fuses_products(arguments.get("enable_fp_fusion"))
        if mode := arguments.get("instrumentation_mode"):
            _refuse_instrumentation(mode)
        if knobs.compilation.enable_asan:
            raise RuntimeError(
                "TRITON_ENABLE_ASAN is for AMD's GPUs; on mtia, TORCH_MTIA_CHECK_BOUNDS=1 checks every access"
            )
        if not arguments.get("debug"):
            arguments["sanitize_overflow"] = False  # its checks are asserts, which then do nothing but take time
        if "extern_libs" in arguments and isinstance(arguments["extern_libs"], dict):
            arguments["extern_libs"] = tuple(arguments["extern_libs"].items())
        from torch_mtia.triton import machine

        machine.level(arguments["arch"])
        return MTIAOptions(**arguments)

    def pack_metadata(self, metadata: Any) -> tuple[Any, ...]:
        return (metadata.num_warps, metadata.num_ctas, metadata.shared)

    def get_codegen_implementation(self, options: Any) -> dict[str, Any]:
        from torch_mtia.triton import float8e4b15

        emulated = options.emulate
        least = emulated_target.min_dot_size(emulated) if emulated else lambda *_types: (1, 1, 1)
        return {"min_dot_size": least, "convert_custom_types": float8e4b15.convert}

    def get_module_map(self) -> dict[str, ModuleType]:
        from triton.language.extra.cuda import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, ctx: Any) -> None:
        """Triton's own dialects, which are always loaded, are enough."""

    def add_stages(self, stages: dict[str, Any], options: Any, language: Any = None) -> None:
        if language is not None and getattr(language, "name", "TRITON") != "TRITON":
            raise RuntimeError("mtia compiles Triton's language, not Gluon")
        stages["ttir"] = lambda source, _metadata: self.make_ttir(source, options.emulate)
        stages["plan"] = lambda source, metadata: self.make_plan(source, metadata, options)
        stages["llir"] = lambda source, metadata: self.make_llir(source, metadata, options)
        stages["asm"] = lambda source, _metadata: self.make_assembly(source, options)
        stages["mtiabin"] = lambda source, metadata: self.make_image(source, metadata, options)
        if knobs.runtime.add_stages_inspection_hook is not None:
            knobs.runtime.add_stages_inspection_hook(self, stages, options, language, None)

    @staticmethod
    def make_ttir(module: Any, emulated: str = "") -> Any:
        from triton._C.libtriton import ir, passes

        units = _unit_strides(module)
        manager = ir.pass_manager(module.context)
        manager.enable_debug()
        passes.common.add_inliner(manager)
        rewrite_block_pointers(manager)
        passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
        passes.common.add_canonicalizer(manager)
        passes.ttir.add_combine(manager)
        passes.ttir.add_reorder_broadcast(manager)
        passes.common.add_cse(manager)
        if hasattr(passes.ttir, "add_triton_licm"):
            passes.ttir.add_triton_licm(manager)
        passes.common.add_symbol_dce(manager)
        passes.ttir.add_loop_unroll(manager)
        if emulated:
            passes.ttgpuir.add_f32_dot_tc(manager, emulated_target.emulates_tf32x3(emulated))
        run_passes(manager, module, "make_ttir")
        kernel = module.get_function(module.get_entry_func_name())
        for argument in units:
            kernel.set_arg_attr(argument, UNIT, 1)
        return module

    @staticmethod
    def make_plan(module: Any, metadata: dict[str, Any], options: MTIAOptions) -> PlanStage:
        from torch_mtia.triton.ir import parser

        with _compiling():
            stage = _planned(
                parser.generic_text(module),
                options.arch,
                contracts=options.enable_fp_fusion,
                count=options.count,
                instrument=options.instrument,
                follow_numbers=options.follow_numbers,
                order=0 if options.count else options.order,
                emulated=options.emulate,
            )
        if options.ir_override is None or not options.ir_override.endswith(".plan"):
            return stage
        from torch_mtia.triton.plan.override import changed_plan
        from torch_mtia.triton.plan.text import plan_text

        metadata["ir_override"] = None  # done here: Triton does not know what kind of file it is
        changed = changed_plan(stage.plan, Path(options.ir_override).read_text())
        return PlanStage(changed, plan_text(changed))

    @staticmethod
    def make_llir(stage: PlanStage, metadata: dict[str, Any], options: MTIAOptions) -> str:
        if not isinstance(stage, PlanStage):
            raise ValueError("TRITON_KERNEL_OVERRIDE reads no .plan: name the file in ir_override, or replace .llir")
        metadata["ir_override"] = options.ir_override
        with _compiling():
            text = _emitted(stage, options.arch, options.saturate_fp8)
        metadata["name"] = stage.plan.name
        metadata["shared"] = 0
        metadata["tmem_size"] = 0
        metadata["global_scratch_size"] = 0
        metadata["global_scratch_align"] = 1
        metadata["profile_scratch_size"] = 0
        metadata["profile_scratch_align"] = 1
        return text

    @staticmethod
    def make_assembly(source: str, options: MTIAOptions) -> str:
        return _assembly(source, options.arch)

    @staticmethod
    def make_image(source: str | None, metadata: dict[str, Any], options: MTIAOptions) -> bytes:
        from torch_mtia.triton import image, machine

        if source is None:  # for Triton does not know what kind of file it is
            raise ValueError("assembly is only to be read: override the stage before, .llir")
        match = DESCRIPTION.match(source)
        if match is None:
            raise ValueError("the assembly does not begin with the line that describes the kernel's arguments")
        return image.build(
            _object(source, options.arch),
            name=metadata["name"],
            entry="mtia_entry",
            arguments=[image.Argument(*map(int, part.split(":"))) for part in match[1].split(",") if part],
            scratch_size=int(match[2]),
            cpu_features=machine.level(options.arch).image_features,
            cost_per_program=int(match[3]),
        )


def _unit_strides(module: Any) -> list[int]:
    """The arguments that are 1, by their positions after rewrite_tensor_descriptor_to_pointer: the last stride of each
    descriptor made on the host, in both places (launch.py)."""
    from torch_mtia.triton.launch import taken_apart

    kernel = module.get_function(module.get_entry_func_name())
    units, position = [], 0
    for kind in module.get_function_signature(kernel):
        if match := _DESCRIPTOR.match(kind):
            rank = match[1].count("x")
            parts = len(taken_apart("", rank))
            units += [position + 2 * rank, position + parts + 2 * rank - 1]
            position += parts
        else:
            position += 1
    return units
