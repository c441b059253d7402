"""Reads the text of a plan that somebody has changed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.ir.ops import INTEGER_DIVISIONS, is_load
from torch_mtia.triton.plan.nests import Nest
from torch_mtia.triton.plan.plan import Multiply, Pack, Plan, Reduce, Scan, Store
from torch_mtia.triton.plan.text import Line, Path, plan_lines


class PlanError(ValueError):
    """What a text says that the plan cannot be."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"line {number} of the plan: {message}")


def changed_plan(plan: Plan, text: str) -> Plan:
    """`plan` as its text says, in which some things were changed: see text.py."""
    lines = text.splitlines()
    given = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    given.append((len(lines) + 1, ""))
    changed, edits, at, dropped = plan, list[tuple[int, Line]](), 0, False
    for line in plan_lines(plan):
        wanted, (number, said) = line.text.strip(), given[at]
        if not wanted or (line.goes_on and dropped):
            continue
        match = re.fullmatch(line.pattern, said) if line.pattern else None
        dropped = match is None and said != wanted and line.optional
        if dropped:
            changed = _updated(changed, line.path, functools.partial(_without, line))
        elif match is not None and said != wanted:
            changed = _updated(changed, line.path, functools.partial(_with, line, match))
        elif said != wanted:
            places = ", ".join(re.findall(r"\?P<(\w+)>", line.pattern))
            only = f", of which only {places} can be changed" if places else ""
            raise PlanError(number, f"{said or 'the end'!r} is in the place of {wanted!r}{only}")
        if said != wanted:
            edits.append((number, line))
        at += not dropped
    number, said = given[at]
    if said:
        raise PlanError(number, f"{said!r} is not in the plan that the compiler makes")
    for number, line in edits:
        paths = [line.path[:length] for length in range(len(line.path) + 1)]
        above = [(_at(changed, path), _at(plan, path)) for path in paths]
        if refusal := _refused_access(*above[-1], line) or next(filter(None, itertools.starmap(_refused, above)), ""):
            raise PlanError(number, f"{lines[number - 1].strip()!r}: {refusal}")
    return changed


def _at(part: Any, path: Path) -> Any:
    for step in path:
        part = part[step] if isinstance(step, int) else getattr(part, step)
    return part


def _updated(part: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """`part` with what `path` leads to as `change` returns it."""
    if not path:
        return change(part)
    step, *rest = path
    if isinstance(step, int):
        return (*part[:step], _updated(part[step], tuple(rest), change), *part[step + 1 :])
    return dataclasses.replace(part, **{step: _updated(getattr(part, step), tuple(rest), change)})


def _with(line: Line, match: re.Match[str], part: Any) -> Any:
    if not line.keys:
        return _read(part, match)
    entries = getattr(part, line.field)
    read = {key: _read(entries[key], match) for key in line.keys}
    return dataclasses.replace(part, **{line.field: {**entries, **read}})


def _read(part: Any, match: re.Match[str]) -> Any:
    """`part` with fields as their places in a line say; what is missing there is the default."""
    changes = {}
    for field in dataclasses.fields(part):
        if field.name in match.groupdict():
            said, kind = match[field.name], type(getattr(part, field.name))
            changes[field.name] = field.default if said is None else kind(said)
    return dataclasses.replace(part, **changes)


def _without(line: Line, part: Any) -> Any:
    value = getattr(part, line.field)
    if isinstance(value, Mapping):
        without: object = {key: item for key, item in value.items() if key not in line.keys}
    else:
        without = type(value)() if isinstance(value, (int, tuple)) else None
    return dataclasses.replace(part, **{line.field: without})


# What would be wrong --------------------------------------------------------------------------------------------------

_POSSIBLE = {
    "vector": ("strided", "gather", "scatter"),
    "strided": ("gather", "scatter"),
    "reciprocal": ("exact",),
}


def _refused(now: Any, before: Any) -> str:
    """Why what `before` was cannot be changed to what it is now, if it cannot."""
    if isinstance(now, (Reduce, Scan)) or (isinstance(now, Pack) and now.columns):
        if now.nest.unroll != 1:
            return "this loop has no rounds of several strips"
        if isinstance(now, Pack) and now.nest.accesses != before.nest.accesses:
            return "how an operand of a product is accessed cannot be changed"
    if isinstance(now, Nest) and (now.unroll < 1 or now.shape[now.dim] % (now.unroll * max(now.lanes, 1))):
        return f"{now.shape[now.dim]} elements are no whole number of rounds of {now.unroll} strips"
    if isinstance(now, Store) and now.unmasked is not None and now.nest.ends != before.nest.ends:
        return "whether the mask is true throughout is known from where the loops end"
    if isinstance(now, Multiply):
        chunk = now.chunk or now.depth
        if now.unroll < 1 or chunk % now.unroll or (now.accumulators.tiles and now.unroll != before.unroll):
            return f"{chunk} products are no whole number of rounds of {now.unroll}"
        if any(access.kind != before.accesses[place].kind for place, access in now.accesses.items()):
            return "how an operand of a product is accessed cannot be changed"
    return ""


def _refused_access(now: Any, before: Any, line: Line) -> str:
    for what, dims in line.keys if line.field == "accesses" else ():
        access, old = now.accesses[what, dims], before.accesses[what, dims]
        is_operation, loads = isinstance(what, Op), not isinstance(what, Op) or is_load(what)
        is_division = isinstance(what, Op) and what.name in INTEGER_DIVISIONS
        possible = () if is_division else _POSSIBLE.get(old.kind, ())
        if access.kind not in (old.kind, *possible):
            return f"it is {old.kind}, and can be {' or '.join(possible) if possible else 'nothing else'}"
        if access.kind != old.kind and access.kind == ("scatter" if loads else "gather"):
            return "a load can be a gather, a store a scatter"
        prefetches = access.kind == "vector" or (old.ahead and access.kind == old.kind)
        if access.ahead and not (is_operation and loads and prefetches):
            return "only loads of neighbours prefetch"
        if access.nontemporal and not (old.nontemporal and access.kind == "vector"):
            return "this store cannot pass by the caches"
    return ""
