"""Walks through what values are made of. None recurses: chains of operations may be thousands long."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TypeVar

from torch_mtia.triton.ir.module import Value
from torch_mtia.triton.ir.ops import MOVING, Dims, operand_dims

T = TypeVar("T")


def operands_first(root: T, known: Container[T], parts: Callable[[T], Sequence[T]]) -> Iterator[T]:
    """`root` and the values that it is made of, as `parts` says, each after its parts but in a cycle. Those that are
    `known` are left out; the caller adds each one before it asks for the next."""
    pending, entered = [(root, False)], set[T]()
    while pending:
        value, has_parts = pending.pop()
        if value in known:
            continue
        if has_parts:
            yield value
        elif value not in entered:
            entered.add(value)
            pending.append((value, True))
            pending.extend((part, False) for part in reversed(parts(value)))


def reached(roots: Iterable[T], parts: Callable[[T], Sequence[T]]) -> dict[T, None]:
    """`roots` and all that they are made of, in the order of operands_first."""
    found: dict[T, None] = {}
    for root in roots:
        for value in operands_first(root, found, parts):
            found[value] = None
    return found


def walk(
    roots: Iterable[tuple[Value, Dims]], enter: Callable[[Value, Dims], Sequence[Value] | None]
) -> list[tuple[Value, Dims]]:
    """The tensors that `enter` accepts, operands first, each with the dimensions of its root that its own are (None
    where it is the same along one). `enter` is asked once for each pair, and returns the values to go on with, mostly
    the operands, or None for a tensor that is left out."""
    pending = [(value, dims, False) for value, dims in roots]
    pending.reverse()
    seen: set[tuple[Value, Dims]] = set()
    done: list[tuple[Value, Dims]] = []
    while pending:
        value, dims, is_done = pending.pop()
        if is_done:
            done.append((value, dims))
            continue
        if (value, dims) in seen:
            continue
        seen.add((value, dims))
        parts = enter(value, dims)
        if parts is None:
            continue
        pending.append((value, dims, True))
        op = value.op
        moves = op is not None and parts is op.operands and op.name in MOVING
        for part in reversed(parts):
            if part.type.shape is not None:
                pending.append((part, operand_dims(op, part, dims) if op is not None and moves else dims, False))
    return done


def own_dims(value: Value) -> Dims:
    """The dimensions of a root: its own."""
    return tuple(range(len(value.type.shape or ())))
