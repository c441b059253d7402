"""A pass over a plan: what a kernel reports to its watch, for the sanitizer and the check of bounds (Note [Watched
kernels] in mtia_runtime.h). Planning knows that a kernel is to be watched: each access is one of its own then."""

from __future__ import annotations

import dataclasses

from torch_mtia.triton import abi
from torch_mtia.triton.analyses.provenance import pointer_argument
from torch_mtia.triton.ir.attributes import Dense, float_bits
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Module, Op, Value
from torch_mtia.triton.plan.plan import Plan, Site

ONLY_NAN, ALL_NUMBERS = "NaN", "NaN or infinity"
ENTERED_BLOCKS = "entered blocks"
_ACCESSES = ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas")
_ACQUIRING, _RELEASING = (2, 4), (3, 4)  # triton::MemSemantic
_EXCHANGE = 10  # triton::RMWOp
_WITHIN_PROGRAM = 2  # triton::MemSyncScope, cta
# In bits, without the sign: infinity. NaN is more.
INFINITY = {"f64": 0x7FF << 52, "f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80, "f8E5M2": 0x7C}


def instrument(plan: Plan, follows_numbers: bool) -> Plan:
    sites: dict[Op, Site] = {}
    for function in plan.module.functions.values():
        for op in function.body.walk():
            if op.name in _ACCESSES:
                argument = pointer_argument(op.operands[0])
                sites[op] = Site(_kind(op), argument if argument in plan.arguments else None)
    follows = "" if not follows_numbers else ONLY_NAN if _selects_infinity(plan.module) else ALL_NUMBERS
    return dataclasses.replace(plan, sites=sites, follows=follows)


def read_once(module: Module) -> None:
    """Makes loads volatile: others are fused into several loops that use them, and read again there."""
    for function in module.functions.values():
        for op in function.body.walk():
            if op.name == "tt.load":
                op.attributes["isVolatile"] = True


def _selects_infinity(module: Module) -> bool:
    """Whether a kernel puts an infinite constant in the place of numbers, as `tl.where(mask, x, -float("inf"))` does.
    Whether it stores that one, or one that it has made in the same lanes and masked off, is not known."""
    return any(
        op.name == "arith.select" and any(map(_is_infinite, op.operands[1:]))
        for function in module.functions.values()
        for op in function.body.walk()
    )


def _is_infinite(value: Value) -> bool:
    """Whether it is such a constant."""
    op = value.op
    while op is not None and op.name == "tt.splat":
        op = op.operands[0].op
    element = value.type.element
    if op is None or op.name != "arith.constant" or element not in INFINITY:
        return False
    constant = op.attributes["value"]
    if isinstance(constant, Dense):
        constant = constant.values[0]
    sign = 1 << (8 * element_size(element) - 1)
    return float_bits(constant, element) & ~sign == INFINITY[element]


def _is_chosen(value: Value) -> bool:
    """Whether only lanes of it that an arith.select chooses have a say in anything."""
    return bool(value.users) and all(
        value is not user.operands[0]
        if user.name == "arith.select"
        else user.name in _SAME_LANES and _is_chosen(user.results[0])
        for user in value.users
    )


_SAME_LANES = (
    "arith.extf",
    "arith.extsi",
    "arith.extui",
    "arith.truncf",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.reshape",
)


def _kind(op: Op) -> int:
    if op.name == "tt.store":
        return abi.SITE_WRITES
    if op.name == "tt.load":
        # Others see what a volatile load looks at written in one piece.
        is_volatile = op.attributes.get("isVolatile")
        kind = abi.SITE_READS | (abi.SITE_ATOMIC | abi.SITE_ACQUIRES if is_volatile else 0)
        return kind | (abi.SITE_CHOOSES if _is_chosen(op.results[0]) else 0)
    order, is_used = op.attributes.get("sem", 4), bool(op.results[0].users)
    kind = abi.SITE_WRITES
    if is_used or op.attributes.get("atomic_rmw_op") != _EXCHANGE:
        kind |= abi.SITE_READS
    if op.attributes.get("scope") == _WITHIN_PROGRAM:  # to other programs it is a load and a store
        return kind
    kind |= abi.SITE_ATOMIC
    if is_used and order in _ACQUIRING:
        kind |= abi.SITE_ACQUIRES
    return kind | (abi.SITE_RELEASES if order in _RELEASING else 0)
