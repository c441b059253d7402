"""What Triton's own representation of a kernel says of its accesses and its operations, as mtia compiles it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_mtia.triton.analyses.affine import Affine, Strides
from torch_mtia.triton.analyses.provenance import made_of
from torch_mtia.triton.analyses.walk import reached
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Module, Op, Value
from torch_mtia.triton.launch import Compiled

_KINDS = {"tt.load": "load", "tt.store": "store", "tt.atomic_rmw": "atomic", "tt.atomic_cas": "atomic"}


class SourceAccess(NamedTuple):
    """An access to global memory in the source."""

    file: str
    line: int
    kind: str  # "load", "store" or "atomic"
    shape: tuple[int, ...]
    size: int  # bytes of an element
    strides: Strides  # bytes from an element to the next along each dimension; None: not known to a compiler
    address: frozenset[str]  # arguments of the kernel that the address is computed from
    mask: frozenset[str]  # and the mask

    @property
    def adjacent(self) -> int | None:
        """Returns the dimension along which elements are adjacent in memory; None: none is known to be so."""
        pairs = enumerate(zip(self.shape, self.strides, strict=True))
        return next((dim for dim, (size, stride) in pairs if size > 1 and stride == self.size), None)


def option_names() -> list[str]:
    """Returns the names of the options of mtia."""
    from torch_mtia.triton.compiler import MTIAOptions

    return [field.name for field in dataclasses.fields(MTIAOptions)]


@functools.lru_cache(maxsize=256)
def module_of(compiled: Compiled) -> Module:
    """Returns the kernel, as it is before mtia plans it."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget

    from torch_mtia.triton.compiler import MTIABackend, MTIAOptions
    from torch_mtia.triton.ir import parser

    metadata = compiled.metadata
    options = MTIAOptions(**{name: getattr(metadata, name) for name in option_names() if hasattr(metadata, name)})
    target = GPUTarget("mtia", options.arch, options.warp_size)
    backend, context = MTIABackend(target), ir.context()
    ir.load_dialects(context)
    module = compiled.source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    return parser.parse(parser.generic_text(backend.make_ttir(module)))


@functools.lru_cache(maxsize=256)
def accesses(compiled: Compiled) -> tuple[SourceAccess, ...]:
    """Returns the accesses of a kernel and of the functions that it calls."""
    module = module_of(compiled)
    affine, arguments = Affine(), frozenset(module.kernel.body.blocks[0].arguments)
    return tuple(_access(op, affine, arguments) for op in walk(module) if op.name in _KINDS)


def walk(module: Module) -> Iterator[Op]:
    """Returns the operations of all functions."""
    for function in module.functions.values():
        yield from function.body.walk()


def _access(op: Op, affine: Affine, arguments: frozenset[Value]) -> SourceAccess:
    pointer = op.operands[0]
    is_masked = (op.name == "tt.load" and len(op.operands) > 1) or len(op.operands) > 2
    mask = op.operands[1 if op.name == "tt.load" else -1] if is_masked and op.name != "tt.atomic_cas" else None
    return SourceAccess(
        op.location.file,
        op.location.line,
        _KINDS[op.name],
        tuple(pointer.type.shape or ()),
        element_size(pointer.type.pointee),
        affine.strides(pointer),
        _names([pointer], arguments),
        _names([mask] if mask is not None else [], arguments),
    )


def _names(values: list[Any], arguments: frozenset[Value]) -> frozenset[str]:
    return frozenset(value.name.lstrip("%") for value in reached(values, made_of) if value in arguments)
