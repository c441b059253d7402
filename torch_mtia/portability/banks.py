"""Conflicts between the lanes of a warp in the banks of shared memory, from the address arithmetic in PTX.

The addresses of all threads are computed as the code computes them, from the number of the thread. What a warp shares,
such as an argument of the kernel, moves all addresses by the same amount and changes no conflict. Whatever else an
address depends on makes it unknown, and the access has no figure: nothing is assumed.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

WARP = 32
_BANKS, _WORD = 32, 4  # of all chips since compute capability 5.0; bytes


class SharedAccess(NamedTuple):
    """The accesses to shared memory of one line of the source."""

    file: str
    line: int
    kind: str  # "load" or "store"
    ways: int | None  # accesses of a bank, one after the other, where one is enough; 1: no conflict; None: not known
    why: str = ""  # ways are not known


class _Value(NamedTuple):
    """What a register has in each thread, apart from a number that all lanes of a warp share."""

    threads: tuple[int, ...]
    unit: int = 0  # the shared number is a multiple of it, and zero if it is zero

    def is_uniform(self) -> bool:
        warps = range(0, len(self.threads), WARP)
        return all(len(set(self.threads[first : first + WARP])) == 1 for first in warps)


class _Instruction(NamedTuple):
    predicate: str  # "%p1", "!%p1" or ""
    op: tuple[str, ...]  # "mad", "lo", "s32"
    results: tuple[str, ...]
    operands: tuple[str, ...]


_LINE = re.compile(r"^(?:@(?P<predicate>!?%\w+)\s+)?(?P<op>[a-z][\w.:]*)\s*(?P<rest>[^;]*);?")
_OPERAND = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|[^,\s{}\[\]|]+")
_ADDRESS = re.compile(r"\[\s*(?P<base>[%\w]+)\s*(?:\+\s*(?P<offset>-?\d+))?\s*\]")
_SHARED = re.compile(
    r"^(?P<op>ld|st)(?:\.volatile)?\.shared(?:::cta)?(?:\.v(?P<lanes>[248]))?\.[busf](?P<bits>\d+)$"
    r"|^(?P<matrix>ld|st)matrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?:\.trans)?\.shared(?:::cta)?\.b16$"
)
_NOT_READ = {
    "cp.async.ca.shared": "written by cp.async",
    "cp.async.cg.shared": "written by cp.async",
    "cp.async.bulk.tensor": "copied by TMA",
    "atom.shared": "atomic",
    "red.shared": "atomic",
    "wgmma.mma_async": "read by the tensor core",
    "tcgen05.mma": "read by the tensor core",
    "tcgen05.cp": "read by the tensor core",
}
_UNKNOWN, _DIVERGES = "the address depends on data", "lanes of a warp take different branches"


def shared_accesses(located: Iterable[tuple[str, int, str]], threads: int) -> list[SharedAccess]:
    """Returns the accesses to shared memory, in the order of the source.

    Args:
        located: lines of PTX, each with its file and line in the source.
        threads: of a program.
    """
    lines = [(file, line, parsed) for file, line, text in _entry(located) if (parsed := _parsed(text))]
    code = _Code([each for *_, each in lines], threads)
    found: dict[tuple[str, int, str], list[int | str]] = defaultdict(list)
    for file, line, each in lines:
        name = ".".join(each.op)
        if match := _SHARED.match(name):
            kind = {"ld": "load", "st": "store"}[match["op"] or match["matrix"]]
            found[file, line, kind].append(code.ways(each, match))
        elif why := next((why for start, why in _NOT_READ.items() if name.startswith(start)), ""):
            kind = "load" if "tensor core" in why or name.endswith("bulk_group") else "store"
            found[file, line, kind].append(why)
    return [SharedAccess(*place, *_worst(ways)) for place, ways in sorted(found.items())]


def _worst(ways: list[int | str]) -> tuple[int | None, str]:
    unknown = [each for each in ways if isinstance(each, str)]
    return (None, unknown[0]) if unknown else (max(each for each in ways if isinstance(each, int)), "")


def _entry(located: Iterable[tuple[str, int, str]]) -> Iterator[tuple[str, int, str]]:
    """The lines of the kernel, without those of the functions that it calls, whose registers have the same names."""
    is_inside = False
    for file, line, text in located:
        is_inside = (is_inside or ".entry" in text) and not text.startswith("}")
        if is_inside:
            yield file, line, text


def _parsed(text: str) -> _Instruction | None:
    match = _LINE.match(text.strip())
    if match is None:
        return None
    operands = tuple(_OPERAND.findall(match["rest"]))
    results: tuple[str, ...] = ()
    if operands and not operands[0].startswith("["):
        both = 2 if match["op"].startswith("setp") and "|" in match["rest"] else 1
        results = tuple(re.findall(r"%\w+", " ".join(operands[:both])))
        operands = operands[both:]
    return _Instruction(match["predicate"] or "", tuple(match["op"].split(".")), results, operands)


class _Code:
    """Instructions, and what registers have."""

    def __init__(self, instructions: list[_Instruction], threads: int) -> None:
        self._count = threads
        self._defined: dict[str, list[_Instruction]] = defaultdict(list)
        for each in instructions:
            for result in each.results:
                self._defined[result].append(each)
        self._values: dict[str, _Value | None] = {}
        branches = {each.predicate.lstrip("!") for each in instructions if each.op[0] == "bra" and each.predicate}
        self._diverges = False
        for register in branches:
            value = self._value(register)
            self._diverges = self._diverges or value is None or not value.is_uniform()

    def ways(self, access: _Instruction, match: re.Match[str]) -> int | str:
        """Returns the most accesses of a bank that a warp needs; or why that is not known."""
        if self._diverges:
            return _DIVERGES
        operand = next(each for each in access.operands if each.startswith("["))
        address, active = self._address(operand), self._active(access.predicate)
        if address is None or active is None:
            return _UNKNOWN
        if match["matrix"]:  # each eight lanes have the rows of a matrix
            size, lanes = 16, 8 * int(match["count"])
        else:
            size, lanes = int(match["lanes"] or 1) * int(match["bits"]) // 8, WARP
        group = WARP * _WORD // max(size, _WORD)  # lanes that are served at a time
        moved = range(0, _WORD, math.gcd(address.unit, _WORD)) if size < _WORD else (0,)
        found = {
            max(
                (
                    _conflicts(address.threads[first : first + group], active[first : first + group], size, by)
                    for warp in range(0, self._count, WARP)
                    for first in range(warp, warp + lanes, group)
                ),
                default=1,
            )
            for by in moved
        }
        return found.pop() if len(found) == 1 else _UNKNOWN

    def _address(self, operand: str) -> _Value | None:
        match = _ADDRESS.fullmatch(operand)
        return self._value(match["base"]) if match is not None else None  # an offset moves all lanes

    def _active(self, predicate: str) -> tuple[bool, ...] | None:
        """The threads that a predicate lets take part; all, if it is the same for a warp."""
        if not predicate:
            return (True,) * self._count
        name = predicate.lstrip("!")
        value = self._value(name)
        if value is not None and value.unit == 0:
            return tuple(bool(each) != predicate.startswith("!") for each in value.threads)
        if value is not None and value.is_uniform():
            return (True,) * self._count
        made = self._defined[name]
        if len(made) == 1 and made[0].op == ("and", "pred") and not predicate.startswith("!"):
            left, right = map(self._active, made[0].operands)
            if left is not None and right is not None:
                return tuple(map(operator.and_, left, right))
        return None

    def _value(self, name: str) -> _Value | None:
        """The value of a register, after all that it depends on has been computed as often as it changes."""
        if name not in self._values:
            needed = self._needed(name)
            known: dict[str, _Value | None] = {**self._values}
            while True:
                before = {each: known.get(each, _TOP) for each in needed}
                for each in needed:
                    known[each] = self._joined(each, known)
                if all(known[each] == before[each] for each in needed):
                    break
            self._values.update({each: None if known[each] is _TOP else known[each] for each in needed})
        return self._values[name]

    def _needed(self, name: str) -> list[str]:
        """Registers that are not known yet, the ones that others depend on first where there is no loop."""
        order: list[str] = []
        seen: set[str] = set()
        waiting = [(name, False)]
        while waiting:
            each, is_done = waiting.pop()
            if is_done:
                order.append(each)
            elif each not in seen and each not in self._values:
                seen.add(each)
                waiting.append((each, True))
                for made in self._defined.get(each, ()):
                    texts = " ".join([made.predicate, *made.operands])
                    waiting += [(other, False) for other in re.findall(r"%\w+(?:\.\w+)?", texts)]
        return order

    def _joined(self, name: str, known: Mapping[str, _Value | None]) -> _Value | None:
        if name not in self._defined:
            return self._special(name)
        found = [self._computed(each, known) for each in self._defined[name]]
        found = [each for each in found if each is not _TOP]
        first = found[0] if found else _TOP
        for other in found[1:]:
            first = _either(first, other)
        return first

    def _special(self, name: str) -> _Value | None:
        if name == "%tid.x":
            return _Value(tuple(range(self._count)))
        if name == "%laneid":
            return _Value(tuple(each % WARP for each in range(self._count)))
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", name):
            return _Value((int(name, 0),) * self._count)
        if name == "global_smem":
            return _Value((0,) * self._count, 16)
        return self._shared() if re.match(r"%(nctaid|ctaid|ntid|clusterid|cluster_ctaid|warpid)\b", name) else None

    def _shared(self) -> _Value:
        """A number of which only is known that the lanes of a warp share it."""
        return _Value((0,) * self._count, 1)

    def _computed(self, made: _Instruction, known: Mapping[str, _Value | None]) -> _Value | None:
        def get(operand: str) -> _Value | None:
            name = operand if operand.startswith("%") else operand.strip("[] ").split("+")[0].strip()
            return known.get(name, _TOP) if name in self._defined else self._special(name)

        if made.predicate:
            condition = get(made.predicate.lstrip("!"))
            if condition is _TOP:
                return _TOP
            if condition is None or not condition.is_uniform():
                return None
        if len(made.results) > 1:
            return None
        if made.op[:2] == ("ld", "param"):
            return self._shared() if "_param_" in made.operands[0] else None  # of the kernel, or what a call returns
        values = [get(each) for each in made.operands]
        if _TOP in values:
            return _TOP
        if None in values:
            return None
        operands = [each for each in values if each is not None]
        if made.op[0] in ("ld", "ldu"):
            return self._shared() if operands[0].is_uniform() else None
        return self._of(made.op, operands)

    def _of(self, op: tuple[str, ...], values: list[_Value]) -> _Value | None:
        name, kind = op[0], op[-1]
        if any(re.fullmatch(r"b?f\d+(x2)?", part) for part in op):
            return self._shared() if all(each.is_uniform() for each in values) else None
        if name == "shfl":
            lane = values[1] if op[2] == "idx" else None
            return self._shared() if lane is not None and lane.unit == 0 and lane.is_uniform() else None
        if all(each.unit == 0 for each in values):
            compute = _compute(op)
            if compute is not None:
                return _Value(tuple(map(compute, *(each.threads for each in values))))
        elif name in ("mov", "cvt", "cvta"):
            return values[0]
        elif name in ("add", "sub"):
            sign = 1 if name == "add" else -1
            threads = tuple(a + sign * b for a, b in zip(values[0].threads, values[1].threads, strict=True))
            return _wrapped(_Value(threads, math.gcd(values[0].unit, values[1].unit)), kind)
        elif name in ("shl", "mul", "mad") and op[1] != "hi":
            by = next((each for each in reversed(values[:2]) if each.unit == 0 and len(set(each.threads)) == 1), None)
            if by is not None and (name != "shl" or by is values[1]):
                scaled = values[0] if by is values[1] else values[1]
                factor = 1 << by.threads[0] if name == "shl" else by.threads[0]
                product = _Value(tuple(each * factor for each in scaled.threads), scaled.unit * abs(factor))
                return self._of(("add", kind), [product, values[2]]) if name == "mad" else _wrapped(product, kind)
        return self._shared() if all(each.is_uniform() for each in values) else None


_TOP = _Value(())  # not computed yet


def _either(one: _Value | None, other: _Value | None) -> _Value | None:
    """What a register has that is set in two places, on a way that the lanes of a warp share."""
    if one is None or other is None:
        return None
    if one == other:
        return one
    difference = _Value(tuple(map(operator.sub, one.threads, other.threads)))
    if not difference.is_uniform():
        return None
    return _Value(one.threads, math.gcd(one.unit, other.unit, *difference.threads) or 1)


def _wrapped(value: _Value, kind: str) -> _Value:
    bits = int(re.sub(r"\D", "", kind) or 32)
    return _Value(tuple(each & ((1 << bits) - 1) for each in value.threads), value.unit)


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


_OF_PREDICATES: Mapping[str, Callable[..., int]] = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": lambda a: 1 - a, "mov": lambda a: a,
}  # fmt: skip


def _compute(op: tuple[str, ...]) -> Callable[..., int] | None:
    """Returns what an instruction computes of numbers; None: it is not one of those that addresses are made with."""
    name, kind = op[0], op[-1]
    if kind == "pred":
        return _OF_PREDICATES.get(name)
    if not re.fullmatch(r"[busf]\d+", kind) or kind.startswith("f"):
        return None
    bits, is_signed = int(kind[1:]), kind.startswith("s")
    mask = (1 << bits) - 1

    def read(number: int) -> int:
        return _signed(number, bits) if is_signed else number & mask

    if name == "setp":
        compare = _COMPARISONS.get(op[1])
        return (lambda a, b: int(compare(read(a), read(b)))) if compare is not None and len(op) == 3 else None
    if name == "cvt":
        wide = int(re.sub(r"\D", "", op[-2]) or 32)
        return (lambda a: read(a) & ((1 << wide) - 1)) if op[-2][0] in "bus" and len(op) == 3 else None
    if name in ("mul", "mad") and op[1] in ("lo", "wide"):
        wide = mask if op[1] == "lo" else (1 << 2 * bits) - 1
        return lambda a, b, c=0: (read(a) * read(b) + c) & wide
    simple: Mapping[str, Callable[..., int]] = {
        "mov": lambda a: a & mask,
        "add": lambda a, b: (a + b) & mask,
        "sub": lambda a, b: (a - b) & mask,
        "and": lambda a, b: a & b & mask,
        "or": lambda a, b: (a | b) & mask,
        "xor": lambda a, b: (a ^ b) & mask,
        "not": lambda a: ~a & mask,
        "neg": lambda a: -a & mask,
        "shl": lambda a, b: (a << min(b, bits)) & mask,
        "shr": lambda a, b: (read(a) >> min(b, bits)) & mask,
        "min": lambda a, b: min(read(a), read(b)) & mask,
        "max": lambda a, b: max(read(a), read(b)) & mask,
        "selp": lambda a, b, p: (a if p else b) & mask,
        "bfe": lambda a, first, length: _field(a, first, length, bits, is_signed),
    }
    return simple.get(name)


def _field(number: int, first: int, length: int, bits: int, is_signed: bool) -> int:
    field = ((number & ((1 << bits) - 1)) >> first) & ((1 << length) - 1)
    return (_signed(field, length) if is_signed and length else field) & ((1 << bits) - 1)


def _conflicts(addresses: Iterable[int], active: Iterable[bool], size: int, by: int) -> int:
    """The most different words of one bank."""
    words = {
        word
        for address, takes_part in zip(addresses, active, strict=True)
        if takes_part
        for word in range((address + by) // _WORD, (address + by + max(size, 1) - 1) // _WORD + 1)
    }
    banks: dict[int, int] = defaultdict(int)
    for word in words:
        banks[word % _BANKS] += 1
    return max(banks.values(), default=1)
