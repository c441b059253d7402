"""What is made simpler in TTIR before anything looks at it."""

from __future__ import annotations

from torch_mtia.triton.ir.elements import WIDE
from torch_mtia.triton.ir.module import Block, Function, Module, Op, Value
from torch_mtia.triton.ir.ops import OPS, Facts, Kind

# The attribute of an argument that is 1, whatever is passed (compiler.py).
UNIT = "tt.unit"
# An `if` has branches of so few operations, of so few instructions each, that both may be done.
MOST_OPERATIONS = 12
CHEAP = 2
STATEMENT = Facts(Kind.STATEMENT)


def simplify(module: Module, contracts: bool) -> None:
    """`contracts`: whether a product and a sum may be rounded once, together."""
    for function in module.functions.values():
        _replace_units(function)
        for op in list(function.body.walk()):
            if op.name == "tt.reshape" and op.operands[0].type.shape == op.results[0].type.shape:
                # It comes of `tl.sum(x)`, and would take a buffer for nothing.
                _replace(op, op.operands)
            elif op.name == "scf.if" and _may_be_selects(op):
                _replace_by_selects(op)
        for op in list(function.body.walk()) if contracts else []:
            if op.name in ("arith.addf", "arith.subf") and op.results[0].type.element in WIDE:
                _contract(op)


def _replace_units(function: Function) -> None:
    entry = function.body.blocks[0]
    for argument, attributes in zip(entry.arguments, function.argument_attributes, strict=False):
        if UNIT in attributes and argument.users:
            one = _op("arith.constant", [], [argument], entry, function)
            one.attribute_text = f"value = 1 : {argument.type.element}"
            entry.ops.insert(0, one)
            _redirect(argument, one.results[0])
    _number(entry)


def _may_be_selects(op: Op) -> bool:
    """An `if` around few operations on the elements of tensors. They are part of the loops around what they are for,
    where the `if` would have loops, and buffers, of its own."""
    if not op.results or not all(result.type.shape for result in op.results):
        return False
    inner = [each for region in op.regions for block in region.blocks for each in block.ops[:-1]]
    found = [OPS.get(each.name, STATEMENT) for each in inner]
    return (
        all(len(region.blocks) == 1 for region in op.regions)
        and len(inner) <= MOST_OPERATIONS
        and all(facts.kind is Kind.ELEMENTWISE and facts.cost <= CHEAP for facts in found)
    )


def _replace_by_selects(op: Op) -> None:
    block = op.block
    position = block.ops.index(op)
    branches: list[list[Value]] = []
    for region in op.regions:
        (inner,) = region.blocks
        *computed, terminator = inner.ops
        for operand in terminator.operands:
            operand.users.remove(terminator)
        branches.append(terminator.operands)
        for each in computed:
            each.block = block
        block.ops[position:position] = computed
        position += len(computed)
    (condition,) = op.operands
    selects = []
    for result, yes, no in zip(op.results, *branches, strict=True):
        select = _op("arith.select", [condition, yes, no], [result], block, op)
        block.ops.insert(position, select)
        position += 1
        selects.append(select.results[0])
    _replace(op, selects)


def _contract(op: Op) -> None:
    """Makes one operation of a sum and of a product that nothing else needs. It is decided here, and not by LLVM, so
    that a kernel that looks at its numbers has the same ones."""
    products = [number for number, operand in enumerate(op.operands) if _is_factor(operand, op)]
    # Of two products, the one that is rounded by itself would tell the sides of a commutative function apart.
    if not products or (len(products) == 2 and _is_combining(op)):
        return
    number, block = products[0], op.block
    product, addend = op.operands[number].op, op.operands[1 - number]
    assert product is not None
    left, right = product.operands
    if op.name == "arith.subf" and number == 0:
        addend = _negative(addend, op)
    elif op.name == "arith.subf":
        left = _negative(left, op)
    fused = _op("math.fma", [left, right, addend], op.results, block, op)
    block.ops.insert(block.ops.index(op), fused)
    _replace(op, fused.results)
    _remove(product)


def _is_factor(value: Value, op: Op) -> bool:
    return value.op is not None and value.op.name == "arith.mulf" and value.op.block is op.block and value.users == [op]


def _is_combining(op: Op) -> bool:
    parent = op.block.region.parent
    return parent is not None and parent.name in ("tt.reduce", "tt.scan")


def _negative(value: Value, op: Op) -> Value:
    """Before `op`."""
    negative = _op("arith.negf", [value], [value], op.block, op)
    op.block.ops.insert(op.block.ops.index(op), negative)
    return negative.results[0]


def _op(name: str, operands: list[Value], like: list[Value], block: Block, where: Op | Function) -> Op:
    """With results of the names and types of others. The caller gives it its place in the block."""
    op = Op(name, operands, [], [], [], block, 0, where.location, "")
    op.results = [Value(value.name, value.type, op, block, number) for number, value in enumerate(like)]
    for operand in operands:
        operand.users.append(op)
    return op


def _replace(op: Op, values: list[Value]) -> None:
    for result, value in zip(op.results, values, strict=True):
        _redirect(result, value)
    _remove(op)


def _remove(op: Op) -> None:
    for operand in op.operands:
        operand.users.remove(op)
    op.block.ops.remove(op)
    _number(op.block)


def _redirect(value: Value, other: Value) -> None:
    for user in value.users:
        user.operands[:] = [other if operand is value else operand for operand in user.operands]
        other.users.append(user)
    value.users.clear()


def _number(block: Block) -> None:
    for position, op in enumerate(block.ops):
        op.position = position
