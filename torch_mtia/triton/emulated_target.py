"""The GPU whose numbers a kernel computes here: the launch option `emulate="cuda:90"`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget

from torch_mtia.gpu_targets import Target, parse
from torch_mtia.triton.ir.emulation import Numerics

# What a target's front end decides by itself.
_FRONT_END = (
    "default_dot_input_precision",
    "allowed_dot_input_precisions",
    "supported_fp8_dtypes",
    "deprecated_fp8_dot_operand_dtypes",
)
_CHECKED = ("num_warps", "num_ctas", "num_stages")  # of a launch, that a target may refuse
_CUDA = {32: 8, 16: 16, 8: 32}
_INSTRUCTIONS = {
    "gfx90a": {16: 8},
    "gfx942": {32: 4, 16: 8, 8: 16},
    "gfx950": {16: 16, 8: 64},
    "gfx1100": {16: 16},
}


def front_end(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options by which Triton's front end differs on the target. Raises what the target's back end raises
    for those of a launch."""
    known = _options(name, tuple((key, options[key]) for key in _CHECKED if options.get(key) is not None))
    return {each: tuple(value) if isinstance(value := getattr(known, each), list) else value for each in _FRONT_END}


def min_dot_size(name: str) -> Any:
    """Returns the target's own function that says how small a tl.dot may be."""
    return _backend(parse(name)).get_codegen_implementation(_options(name, ()))["min_dot_size"]


def emulates_tf32x3(name: str) -> bool:
    """Returns what the target's back end asks Triton's pass for dots of f32."""
    target = parse(name)
    return target.backend == "cuda" and int(target.arch) >= 80


def numerics(name: str) -> Numerics:
    """Returns how the target computes. Raises ValueError for one of which it is not known."""
    target = parse(name)
    if target.backend == "cuda" and int(target.arch) >= 80:
        return Numerics(_CUDA, halves=int(target.arch) < 90)
    if target.arch in _INSTRUCTIONS:
        return Numerics(_INSTRUCTIONS[str(target.arch)], halves=False)
    known = ", ".join(["cuda:80 and later", *(f"hip:{arch}" for arch in _INSTRUCTIONS)])
    raise ValueError(f"emulate={name!r}: how it computes is not known here; known are {known}")


@functools.cache
def _options(name: str, given: tuple[tuple[str, Any], ...]) -> Any:
    target = parse(name)
    arch = f"sm{target.arch}" if target.backend == "cuda" else target.arch
    return _backend(target).parse_options({**dict(given), "arch": arch, "instrumentation_mode": ""})


@functools.cache
def _backend(target: Target) -> BaseBackend:
    from triton.backends import backends

    for each in backends.values():
        if each.compiler.supports_target(gpu := GPUTarget(*target)):
            return each.compiler(gpu)
    raise ValueError(f"emulate={str(target)!r}: the installed Triton has no back end for {target.backend}")
