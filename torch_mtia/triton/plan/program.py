"""The plan of a kernel."""

from __future__ import annotations

from torch_mtia.triton.analyses.sharing import shares_operands
from torch_mtia.triton.ir.module import Module
from torch_mtia.triton.ir.ops import is_scalar
from torch_mtia.triton.ir.unsupported import Unsupported
from torch_mtia.triton.plan import products, rearranging, reductions, stores  # noqa: F401  (register what they plan)
from torch_mtia.triton.plan.control import leave_with_scalars, plan_body
from torch_mtia.triton.plan.lifetimes import aligned, lifetimes, offsets
from torch_mtia.triton.plan.plan import Plan
from torch_mtia.triton.plan.planner import Planner


def plan_kernel(module: Module, lanes: int, features: frozenset[str], instrumented: bool) -> Plan:
    """For a processor with vectors of `lanes` numbers of 32 bits, and with `features` (machine.py)."""
    kernel = module.kernel
    arguments = kernel.body.blocks[0].arguments
    if not all(map(is_scalar, arguments)):
        raise Unsupported("a tensor as argument of a kernel", kernel.location)
    attributes = kernel.argument_attributes or [{}] * len(arguments)
    divisors = [each.get("tt.divisibility", 1) for each in attributes]
    planner = Planner(module, lanes, features, instrumented)
    planner.leave.append(lambda _returning, values: leave_with_scalars(planner, values))
    body = plan_body(planner, kernel.body)
    used = lifetimes(body)
    places = offsets(used)
    return Plan(
        module,
        kernel.name,
        tuple(arguments),
        tuple(divisor & -divisor for divisor in divisors),
        body,
        lanes,
        instrumented,
        used,
        places,
        max((offset + aligned(storage.bytes) for storage, offset in places.items()), default=0),
        shares_operands(kernel.body),
    )
