"""What a GPU computes in place of exact products and conversions, written as operations of TTIR: `emulate="cuda:90"`.

Splitting of operands for tf32x3, bf16x3 and bf16x6 is done before, by Triton's own pass.
"""

from __future__ import annotations

import dataclasses

from torch_mtia.triton.ir.module import Module, Op, Type, Value

TF32_TO_NEAREST = "cvt.rna.tf32.f32 $0, $1;"  # ties away from zero
TF32_TOWARD_ZERO = "cvt.rz.tf32.f32 $0, $1;"
# Of tl.dot, by its operation: how many products an instruction adds at a time.
INSTRUCTION = "mtia.instruction"
_TF32 = 0  # triton::InputPrecision
_FP8 = ("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ")


@dataclasses.dataclass(frozen=True)
class Numerics:
    """Of a target.

    Attributes:
        instructions: products of f32 (as tf32), f16, bf16, and fp8 operands that an instruction adds at a time, by the
            operands' bits; without an entry, products are added one by one.
        halves: whether f32 becomes f16 on its way to fp8.
    """

    instructions: dict[int, int]
    halves: bool


def emulate(module: Module, numerics: Numerics) -> None:
    for function in module.functions.values():
        for op in list(function.body.walk()):
            if op.name == "tt.dot":
                _dot(op, numerics)
            elif op.name == "tt.fp_to_fp" and numerics.halves:
                _by_way_of_f16(op)


def _dot(op: Op, numerics: Numerics) -> None:
    left, right = (operand.type.element for operand in op.operands[:2])
    if not op.results[0].type.element.startswith("f") or "f64" in (left, right):
        return  # integers, which are exact
    is_tf32 = left == right == "f32"
    if is_tf32 and op.attributes.get("inputPrecision", _TF32) != _TF32:
        return  # one product after the other, without tensor cores
    if is_tf32:
        for number in range(2):
            op.operands[number] = _rounded_to_tf32(op, op.operands[number])
    instruction = numerics.instructions.get(32 if is_tf32 else 8 if left in _FP8 else 16)
    if instruction is not None:
        op.attributes[INSTRUCTION] = instruction


def _rounded_to_tf32(user: Op, value: Value) -> Value:
    """Of a tensor of f32, for one operand of `user`."""
    if value.op is not None and value.op.attributes.get("asm_string") == TF32_TO_NEAREST:
        return value
    return _before(user, "tt.elementwise_inline_asm", value, value.type, f'asm_string = "{TF32_TOWARD_ZERO}"')


def _by_way_of_f16(op: Op) -> None:
    (value,) = op.operands
    if value.type.element == "f32" and op.results[0].type.element in _FP8:
        op.operands[0] = _before(op, "arith.truncf", value, value.type._replace(element="f16"))


def _before(user: Op, name: str, value: Value, type: Type, attributes: str = "") -> Value:
    """The result of a new operation on an operand of `user`."""
    block = user.block
    op = Op(name, [value], [], [], [], block, 0, user.location, attributes)
    op.results = [Value(f"{value.name}_{len(block.ops)}", type, op, block, 0)]
    value.users.remove(user)
    value.users.append(op)
    op.results[0].users.append(user)
    block.ops.insert(block.ops.index(user), op)
    for position, each in enumerate(block.ops):
        each.position = position
    return op.results[0]
