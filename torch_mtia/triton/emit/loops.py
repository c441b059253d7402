"""Writes the loops of nests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch_mtia.triton.emit.ends import first_beyond
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.strip import ZERO, Strip
from torch_mtia.triton.lanes import Index, Lane
from torch_mtia.triton.llvm_value import integer
from torch_mtia.triton.plan.plan import Nest

Cache = Mapping[tuple[object, ...], Lane]


def complete(index: Sequence[Lane | None]) -> Index:
    """An index whose dimensions were filled in one by one."""
    return tuple(lane for lane in index if lane is not None)


def loop_over(env: Environment, nest: Nest, body: Callable[[Strip], None]) -> None:
    """Writes `body` for a strip, in loops over all of them."""
    b, shape, dim = env.b, nest.shape, nest.dim
    ends = {d: first_beyond(env, nest.sources, end) for d, end in nest.ends.items()}
    index: list[Lane | None] = [None] * len(shape)
    with contextlib.ExitStack() as stack, env.repeated(nest.strips // nest.unroll):
        for d, size in enumerate(shape):
            if d != dim:
                index[d] = Lane(stack.enter_context(b.loop(0, size, 1, ends.get(d))))
        outer = hoist(env, nest, index)
        width = max(nest.lanes, 1)
        first = stack.enter_context(b.loop(0, shape[dim], nest.unroll * width, ends.get(dim)))
        for number in range(nest.unroll):
            index[dim] = Lane(b.add(first, integer(number * width, "i32")), 1 if nest.lanes else 0)
            with env.counted():
                body(
                    Strip(
                        env,
                        nest.sources,
                        complete(index),
                        nest.lanes,
                        nest.saves,
                        outer,
                        number * width,
                        nest.accesses,
                    )
                )


def hoist(env: Environment, nest: Nest, index: Sequence[Lane | None]) -> Cache:
    """Evaluates, before the innermost loop opens, what does not change in it: `index` lacks its dimension."""
    around = tuple(ZERO if lane is None else lane for lane in index)
    strip = Strip(env, nest.sources, around, nest.lanes, accesses=nest.accesses)
    for value, dims in nest.hoisted:
        strip.value(value, complete([ZERO if d is None else index[d] for d in dims]))
    return strip.cache


@contextlib.contextmanager
def loops_around(env: Environment, nest: Nest, axis: int, width: int) -> Iterator[list[Lane]]:
    """Loops over all dimensions but `axis`, in strips of `width` along the nest's dimension if that is another; gives
    the lanes of these dimensions."""
    index: dict[int, Lane] = {}
    across = nest.dim if nest.dim != axis else None
    order = [d for d in range(len(nest.shape)) if d not in (axis, across)] + ([across] if across is not None else [])
    with contextlib.ExitStack() as stack:
        for d in order:
            step = max(width, 1) if d == across else 1
            counter = stack.enter_context(env.b.loop(0, nest.shape[d], step))
            index[d] = Lane(counter, 1 if d == across and width else 0)
        yield [index[d] for d in range(len(nest.shape)) if d != axis]
