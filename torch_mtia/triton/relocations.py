"""What a linker writes at a place that refers to a target: ELF's relocations, as LLVM uses them in a small kernel.

Places and targets are offsets in an image, which is loaded at the begin of a page.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

Write = Callable[[bytearray, int, int], None]  # (memory, place, target)
X86_64, AARCH64 = 62, 183  # ELF's numbers of machines


class LinkError(Exception):
    """The object file is not of the kind that images are made of: a mistake of this package."""


def write(memory: bytearray, machine: int, kind: int, place: int, target: int) -> bool:
    """Whether it is an address of 8 bytes, to which the load address is still to be added."""
    if (machine, kind) in _ADDRESSES:
        struct.pack_into("<Q", memory, place, target)
        return True
    found = _RELATIVE.get((machine, kind))
    if found is None:
        raise LinkError(f"relocation of kind {kind} for machine {machine}")
    found(memory, place, target)
    return False


def _distance(format_: str, memory: bytearray, place: int, target: int) -> None:
    struct.pack_into(format_, memory, place, target - place)


def _patch(memory: bytearray, place: int, bits: int) -> None:
    (instruction,) = struct.unpack_from("<I", memory, place)
    struct.pack_into("<I", memory, place, instruction | bits)


def _pages(memory: bytearray, place: int, target: int) -> None:
    """ADRP: two lower bits of the distance in pages apart from 19 higher ones."""
    pages = (target >> 12) - (place >> 12)
    _patch(memory, place, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)


def _in_page(unit: int, memory: bytearray, place: int, target: int) -> None:
    """ADD, and loads and stores of 2**unit bytes: where in its page the target is."""
    _patch(memory, place, (target & 0xFFF) >> unit << 10)


def _jump(memory: bytearray, place: int, target: int) -> None:
    _patch(memory, place, (target - place) >> 2 & 0x3FFFFFF)


_ADDRESSES = {(X86_64, 1), (AARCH64, 257)}
_RELATIVE: dict[tuple[int, int], Write] = {
    (X86_64, 2): functools.partial(_distance, "<i"),
    (X86_64, 4): functools.partial(_distance, "<i"),
    (X86_64, 24): functools.partial(_distance, "<q"),
    (AARCH64, 260): functools.partial(_distance, "<q"),
    (AARCH64, 261): functools.partial(_distance, "<i"),
    (AARCH64, 275): _pages,
    (AARCH64, 277): functools.partial(_in_page, 0),
    (AARCH64, 278): functools.partial(_in_page, 0),
    (AARCH64, 284): functools.partial(_in_page, 1),
    (AARCH64, 285): functools.partial(_in_page, 2),
    (AARCH64, 286): functools.partial(_in_page, 3),
    (AARCH64, 299): functools.partial(_in_page, 4),
    (AARCH64, 282): _jump,
    (AARCH64, 283): _jump,
}
