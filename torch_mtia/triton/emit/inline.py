"""Applies regions of scalar operations, such as the combine function of a reduction, to strips."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mtia.triton.emit import watching
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.errors import check_assertion
from torch_mtia.triton.emit.registry import ELEMENTWISE
from torch_mtia.triton.emit.strip import apply
from torch_mtia.triton.ir.module import Block, Op, Region
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.ir.unsupported import Unsupported
from torch_mtia.triton.lanes import Lane, materialize


def inline(env: Environment, region: Region, arguments: Sequence[Lane], width: int, across: Op) -> list[Lane]:
    """Applies a region of scalar operations, that of a reduction or a scan `across` lanes, to strips."""
    if len(region.blocks) != 1:
        raise Unsupported("control flow in a combine function", region.blocks[0].terminator.location)
    block = region.blocks[0]
    environment = dict(zip(block.arguments, arguments, strict=True))
    return _inline_block(env, block, environment, width, across)


def _inline_block(
    env: Environment, block: Block, environment: dict[Tensor, Lane], width: int, across: Op
) -> list[Lane]:
    def look_up(value: Tensor) -> Lane:
        found = environment.get(value)
        return found if found is not None else env.scalar(value)

    for op in block.ops[:-1]:
        lanes = [look_up(operand) for operand in op.operands]
        if op.name == "scf.if" and all(_is_pure(region) for region in op.regions):
            branches = [_inline_block(env, region.blocks[0], environment, width, across) for region in op.regions]
            results = [_select(env, lanes[0], yes, no, width) for yes, no in zip(*branches, strict=True)]
        elif op.name == "tt.call":
            callee = env.module.functions[op.attributes["callee"].lstrip("@")]
            results = inline(env, callee.body, lanes, width, across)
        elif op.name in ELEMENTWISE:
            results = apply(env.b, op, lanes, width)
            if env.follows_numbers:
                watching.computed(env, op, lanes, results, width, across)
        elif op.name == "tt.assert":
            check_assertion(env.b, op, lanes[0], width)
            continue
        elif op.name == "llvm.intr.assume":
            continue
        else:
            raise Unsupported(f"operation {op.name} in a combine function", op.location)
        environment.update(zip(op.results, results, strict=True))
    return [look_up(operand) for operand in block.terminator.operands]


def _is_pure(region: Region) -> bool:
    return len(region.blocks) == 1 and all(
        op.name in ELEMENTWISE or op.name in ("scf.yield", "scf.if") for op in region.walk()
    )


def _select(env: Environment, condition: Lane, yes: Lane, no: Lane, width: int) -> Lane:
    if condition.uniform and yes.uniform and no.uniform:
        return Lane(env.b.select(condition.value, yes.value, no.value))
    flag = condition.value if condition.uniform else materialize(env.b, condition, width)
    return Lane(env.b.select(flag, materialize(env.b, yes, width), materialize(env.b, no, width)), None if width else 0)
