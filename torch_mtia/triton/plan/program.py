"""The plan of a kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch_mtia.triton.analyses.provenance import made_of
from torch_mtia.triton.analyses.walk import reached
from torch_mtia.triton.ir.module import Module, Region, Unsupported, Value
from torch_mtia.triton.ir.ops import is_scalar
from torch_mtia.triton.plan import products, rearranging, reductions, stores  # noqa: F401  (register what they plan)
from torch_mtia.triton.plan.control import leave_with_scalars, plan_body
from torch_mtia.triton.plan.cost import estimate
from torch_mtia.triton.plan.instrumentation import instrument
from torch_mtia.triton.plan.lifetimes import aligned, lifetimes, offsets
from torch_mtia.triton.plan.nests import transformed
from torch_mtia.triton.plan.passes import access_buffers, prefetch, stream, unroll
from torch_mtia.triton.plan.plan import Plan
from torch_mtia.triton.plan.planner import Planner

BAND = 8  # programs in x


def plan_kernel(
    module: Module,
    lanes: int,
    features: frozenset[str],
    instrumented: bool,
    follows_numbers: bool = False,
    order: int = 0,
) -> Plan:
    """For a processor with vectors of `lanes` numbers of 32 bits, and with `features` (machine.py). `follows_numbers`:
    of an instrumented kernel, so that what makes NaN or infinity is found. `order`: a seed of the order of programs; 0:
    that of their numbers."""
    kernel = module.kernel
    arguments = kernel.body.blocks[0].arguments
    if not all(map(is_scalar, arguments)):
        raise Unsupported("a tensor as argument of a kernel", kernel.location)
    attributes = kernel.argument_attributes or [{}] * len(arguments)
    divisors = [each.get("tt.divisibility", 1) for each in attributes]
    known = {argument: divisor & -divisor for argument, divisor in zip(arguments, divisors, strict=True)}
    planner = Planner(module, lanes, features, instrumented, known)
    planner.leave.append(lambda _returning, values: leave_with_scalars(planner, values))
    body = plan_body(planner, kernel.body)
    used = lifetimes(body)
    places = offsets(used)
    plan = Plan(
        module,
        kernel.name,
        tuple(arguments),
        tuple(known.values()),
        body,
        lanes,
        used,
        places,
        max((offset + aligned(storage.bytes) for storage, offset in places.items()), default=0),
        BAND if not order and _shares_operands(kernel.body) else 0,
        order=order,
        may_wait=_may_wait(module),
        guards=planner.guards(),
    )
    changes = [unroll, prefetch, access_buffers]
    if instrumented:
        plan = instrument(plan, follows_numbers)
    else:
        changes.append(stream)

    def changed(part: Any) -> Any:
        for change in changes:
            part = change(part, planner.affine)
        return part

    return estimate(dataclasses.replace(plan, body=transformed(body, changed)), planner.affine)


# A program may wait for what another one writes, so they start in the order of their numbers.
_MAY_WAIT = ("tt.atomic_rmw", "tt.atomic_cas", "scf.while", "cf.br", "cf.cond_br", "tt.call")


def _may_wait(module: Module) -> bool:
    """Whether a program may wait for another one, which then has to start before it: it has a loop without an end that
    is known before."""
    ops = (op for function in module.functions.values() for op in function.body.walk())
    return any(op.name in ("scf.while", "cf.br", "cf.cond_br") for op in ops)


def _shares_operands(body: Region) -> bool:
    """Whether programs along one of the grid's first two axes share the left operand of a product, and those along the
    other one the right one, so that their order decides what the caches still have; and none can wait for another. A
    kernel that numbers its tiles itself, along one axis, has chosen an order. The third axis is that of batches."""
    pairs = []
    for op in body.walk():
        if op.name in _MAY_WAIT or (op.name == "tt.load" and op.attributes.get("isVolatile")):
            return False
        if op.name in ("tt.dot", "tt.dot_scaled"):
            pairs.append({frozenset(_axes(operand) - {2}) for operand in op.operands[:2]})
    return any(pair == {frozenset((0,)), frozenset((1,))} for pair in pairs)


def _axes(value: Value) -> set[int]:
    """The axes of the grid that decide what a value is."""
    ops = [each.op for each in reached([value], made_of)]
    return {op.attributes["axis"] for op in ops if op is not None and op.name == "tt.get_program_id"}
