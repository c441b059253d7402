"""Runs through the steps of a plan: loops, branches, blocks, calls; and what each other step is written by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_mtia.triton.emit import atomic, memory, products, rearranging, scaled, switching, watching
from torch_mtia.triton.emit.access import read_buffer, write_buffer
from torch_mtia.triton.emit.elementwise import constant_value
from torch_mtia.triton.emit.environment import ELEMENTWISE, SCALARS, STATEMENTS, Environment, Target
from torch_mtia.triton.emit.reductions import reduce, scan
from torch_mtia.triton.emit.strip import apply
from torch_mtia.triton.ir.elements import llvm_element
from torch_mtia.triton.ir.module import Unsupported
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.ir.ops import Linear, facts, is_scalar, pointee_size
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Phi
from torch_mtia.triton.llvm_value import Value, integer
from torch_mtia.triton.plan import plan
from torch_mtia.triton.plan.plan import Body, Carried, Step, Steps


def run(env: Environment, steps: Steps) -> None:
    for step in steps:
        switching.before(env, step)
        _STEPS[type(step)](env, step)
        switching.after(env, step)


def _do(env: Environment, do: plan.Do) -> None:
    op = do.op
    try:
        if op.name in STATEMENTS:
            STATEMENTS[op.name](env, do)
        elif op.name in SCALARS:
            SCALARS[op.name](env, op)
        elif op.name in ELEMENTWISE:
            lanes = [env.scalar(operand) for operand in op.operands]
            results = apply(env.b, op, lanes, 0)
            if env.follows:
                watching.computed(env, op, lanes, results, 0)
            env.scalars.update(zip(op.results, results, strict=True))
        else:
            raise Unsupported(f"operation {op.name}")
    except Unsupported as error:
        error.location = error.location or op.location
        raise


def _scalar_type(value: Tensor) -> str:
    return llvm_element(value.type.element)


# Loops ----------------------------------------------------------------------------------------------------------------


def _open_head(env: Environment, carried: Sequence[Carried], before: str) -> dict[Carried, Phi]:
    """Phi nodes of the carried scalars and distances, with what they are before the loop, which `before` enters."""
    phis: dict[Carried, Phi] = {}
    for item in carried:
        if item.buffer is not None:
            continue
        if item.moves is None:
            phi = Phi(env.b, _scalar_type(item.argument))
            phi.incoming.append((env.scalar(item.initial).value, before))
            env.set_scalar(item.argument, phi.value)
        else:
            phi = Phi(env.b, "i64" if item.argument.type.element == "ptr" else item.argument.type.element)
            phi.incoming.append((integer(0, phi.value.type), before))
            env.distances[item.argument] = phi.value
        phis[item] = phi
    return phis


def _next_round(env: Environment, phis: dict[Carried, Phi]) -> None:
    for item, phi in phis.items():
        phi.add(env.scalar(item.following).value if item.moves is None else _advanced(env, item, phi.value))


def _advanced(env: Environment, item: Carried, distance: Value) -> Value:
    b = env.b
    for op, source in item.moves or ():
        if is_scalar(source):
            step = env.scalar(source).value
        else:
            assert source.op is not None
            step = constant_value(source.op, 0)
        known = facts(op)
        if known is not None and known.linear is Linear.OFFSET:
            step = b.mul(b.sext(step, "i64"), integer(pointee_size(op), "i64"))
        distance = b.add(distance, step)
    return distance


def _finish(env: Environment, phis: dict[Carried, Phi]) -> None:
    """Binds the results of a loop to what it carries at its head."""
    for item, phi in phis.items():
        if item.moves is None:
            env.set_scalar(item.result, phi.value)
        else:
            env.distances[item.result] = phi.value
        phi.finish()


def _for(env: Environment, loop: plan.For) -> None:
    b, op = env.b, loop.op
    begin, end, step = (env.scalar(operand).value for operand in op.operands[:3])
    counter = op.regions[0].blocks[0].arguments[0]
    head, inside, done = b.label("for"), b.label("body"), b.label("endfor")
    before = b.block
    b.jump(head)
    b.start(head)
    induction = Phi(b, _scalar_type(counter))
    induction.incoming.append((begin, before))
    induction.value.divisor = min(begin.divisor, step.divisor)
    induction.value.nonnegative = begin.nonnegative
    env.set_scalar(counter, induction.value)
    phis = _open_head(env, loop.carried, before)
    predicate = "ult" if op.attributes.get("unsignedCmp") else "slt"
    b.branch(b.icmp(predicate, induction.value, end), inside, done)
    b.start(inside)
    watching.enter(env, op.regions[0].blocks[0])
    run(env, loop.body)
    _next_round(env, phis)
    induction.add(b.binary("add", induction.value, step))
    b.jump(head)
    induction.finish()
    b.start(done)
    _finish(env, phis)


def _while(env: Environment, loop: plan.While) -> None:
    b, op = env.b, loop.op
    first, second = (region.blocks[0] for region in op.regions)
    head, inside, done = b.label("while"), b.label("body"), b.label("endwhile")
    before = b.block
    b.jump(head)
    b.start(head)
    phis = _open_head(env, loop.carried, before)
    watching.enter(env, first)
    switching.yield_to_others(env)  # which the loop may wait for
    run(env, loop.head)
    condition, *passed = first.terminator.operands
    for value, result, argument in zip(passed, op.results, second.arguments, strict=True):
        if is_scalar(value):
            env.scalars[argument] = env.scalars[result] = env.scalar(value)
    b.branch(env.scalar(condition).value, inside, done)
    b.start(inside)
    watching.enter(env, second)
    run(env, loop.body)
    _next_round(env, phis)
    b.jump(head)
    for phi in phis.values():
        phi.finish()
    b.start(done)


# Branches -------------------------------------------------------------------------------------------------------------


def _if(env: Environment, step: plan.If) -> None:
    b, op = env.b, step.op
    yes, no, done = b.label("then"), b.label("else"), b.label("endif")
    b.branch(env.scalar(op.operands[0]).value, yes, no if len(step.branches) > 1 else done)
    incoming: dict[Tensor, list[tuple[Value, str]]] = {result: [] for result in op.results if is_scalar(result)}
    for label, region, branch in zip((yes, no), op.regions, step.branches, strict=False):
        b.start(label)
        watching.enter(env, region.blocks[0])
        run(env, branch)
        for result, value in zip(op.results, region.blocks[0].terminator.operands, strict=False):
            if is_scalar(result):
                incoming[result].append((env.scalar(value).value, b.block))
        b.jump(done)
    b.start(done)
    for result, ways in incoming.items():
        merged = b.phi(_scalar_type(result), ways)
        merged.divisor = min(value.divisor for value, _ in ways)
        merged.nonnegative = all(value.nonnegative for value, _ in ways)
        env.set_scalar(result, merged)


def run_body(env: Environment, body: Body) -> None:
    """The blocks of a function."""
    first, *others = body.blocks
    for planned in others:
        scalars = filter(is_scalar, planned.block.arguments)
        env.targets[planned.block] = Target(env.b.label("block"), {argument: [] for argument in scalars})
    watching.enter(env, first.block)
    run(env, first.steps)
    phis: list[Phi] = []
    for planned in others:
        target = env.targets[planned.block]
        env.b.start(target.label)
        for argument, incoming in target.incoming.items():
            phi = Phi(env.b, _scalar_type(argument))
            phi.incoming = incoming
            phis.append(phi)
            env.set_scalar(argument, phi.value)
        watching.enter(env, planned.block)
        switching.yield_to_others(env)  # blocks may be a loop
        run(env, planned.steps)
    for phi in phis:
        phi.finish()


def _jump(env: Environment, jump: plan.Jump) -> None:
    target = env.targets[jump.block]
    for argument, value in zip(jump.block.arguments, jump.values, strict=True):
        if is_scalar(argument):
            target.incoming[argument].append((env.scalar(value).value, env.b.block))
    env.b.jump(target.label)


def _branch(env: Environment, branch: plan.Branch) -> None:
    b = env.b
    labels = b.label("yes"), b.label("no")
    b.branch(env.scalar(branch.condition).value, *labels)
    for label, way in zip(labels, branch.ways, strict=True):
        b.start(label)
        run(env, way)


def _leave(env: Environment, step: plan.Leave) -> None:
    env.leave[-1](step.values)


def _unreachable(env: Environment, step: plan.Unreachable) -> None:
    env.b.emit("unreachable")


# Functions ------------------------------------------------------------------------------------------------------------


def _call(env: Environment, call: plan.Call) -> None:
    b = env.b
    env.scalars.update({argument: env.scalar(operand) for argument, operand in call.arguments})
    results = [result for result in call.op.results if is_scalar(result)]
    incoming: list[list[tuple[Value, str]]] = [[] for _ in results]
    done = b.label("returned")

    def leave(values: Sequence[Tensor]) -> None:
        for ways, value in zip(incoming, values, strict=True):
            ways.append((env.scalar(value).value, b.block))
        b.jump(done)

    env.leave.append(leave)
    run_body(env, call.body)
    env.leave.pop()
    b.start(done)
    for result, ways in zip(results, incoming, strict=True):
        env.set_scalar(result, b.phi(_scalar_type(result), ways))


def _map_elements(env: Environment, step: plan.MapElements) -> None:
    b = env.b
    region = step.op.regions[0]
    with b.loop(0, step.op.results[0].type.numel, step.pack) as start:
        places = [(Lane(b.add(start, integer(number, "i32"))),) for number in range(step.pack)]
        arguments = iter(region.blocks[0].arguments)
        for buffer in step.sources:
            for place in places:
                env.scalars[next(arguments)] = read_buffer(env, buffer, place, 0)
        done = b.label("mapped")

        def leave(values: Sequence[Tensor]) -> None:
            results = iter(values)
            for buffer in step.targets:
                for place in places:
                    write_buffer(env, buffer, place, env.scalar(next(results)), 0)
            b.jump(done)

        env.leave.append(leave)
        run_body(env, step.body)
        env.leave.pop()
        b.start(done)


_STEPS: dict[type[Step], Callable[[Environment, Any], None]] = {
    plan.Do: _do,
    plan.Evaluate: rearranging.evaluate,
    plan.Transpose: rearranging.transpose,
    plan.Copy: rearranging.copy,
    plan.Store: lambda env, step: memory.store(env, step, run),
    plan.StoreStaged: memory.store_staged,
    plan.AddNeighbours: atomic.add_neighbours,
    plan.Reduce: reduce,
    plan.Scan: scan,
    plan.Pack: products.pack,
    plan.Decode: scaled.decode,
    plan.Multiply: products.multiply,
    plan.Convert: products.convert,
    plan.Clear: products.clear,
    plan.For: _for,
    plan.While: _while,
    plan.If: _if,
    plan.Jump: _jump,
    plan.Branch: _branch,
    plan.Leave: _leave,
    plan.Unreachable: _unreachable,
    plan.Call: _call,
    plan.MapElements: _map_elements,
}
