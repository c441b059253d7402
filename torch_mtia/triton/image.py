"""Kernel images: links one relocatable object file into the form that any driver loads.

See Note [Kernel image] in csrc/runtime/mtia_runtime.h. An object has a few sections (code, constants) that refer to
each other by distances; laid out side by side, everything is settled here, and what remains for the driver are
8-byte words that hold addresses.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence

from torch_mtia.triton import abi, relocations
from torch_mtia.triton.relocations import LinkError

PAGE = 4096

# ELF
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_ALLOCATED = 2


@dataclasses.dataclass(frozen=True)
class Argument:
    kind: int
    size: int


@dataclasses.dataclass(frozen=True)
class Image:
    """What an image's header says, and where its code is."""

    name: str
    arguments: tuple[tuple[int, int, int], ...]  # kind, size, offset
    packed_size: int
    scratch_size: int
    code_offset: int
    code_size: int
    entry_offset: int
    relocations: tuple[int, ...]
    cpu_features: int
    cost_per_program: int


@dataclasses.dataclass
class _Section:
    name: str
    type: int
    flags: int
    data: bytes
    info: int
    link: int
    alignment: int
    size: int
    address: int = -1


def _name(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def _sections(elf: bytes) -> list[_Section]:
    if elf[:4] != b"\x7fELF":
        raise LinkError("not an ELF file")
    table_offset = struct.unpack_from("<Q", elf, 0x28)[0]
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    raw = [_SECTION.unpack_from(elf, table_offset + entry_size * index) for index in range(count)]
    names_offset, names_size = raw[names_index][4], raw[names_index][5]
    names = elf[names_offset : names_offset + names_size]
    return [
        _Section(
            _name(names, name),
            type_,
            flags,
            b"" if type_ == _NOBITS else elf[offset : offset + size],
            info,
            link,
            max(alignment, 1),
            size,
        )
        for name, type_, flags, _, offset, size, link, info, alignment, _ in raw
    ]


def _link(elf: bytes, entry: str) -> tuple[bytes, int, list[int]]:
    """(code and data, offset of the entry, offsets of address words)"""
    sections = _sections(elf)
    (machine,) = struct.unpack_from("<H", elf, 0x12)
    end = 0
    for section in sections:
        if section.flags & _ALLOCATED and section.name != ".eh_frame":
            section.address = -(-end // section.alignment) * section.alignment
            end = section.address + section.size
    memory = bytearray(end)
    for section in sections:
        if section.address >= 0 and section.type != _NOBITS:
            memory[section.address : section.address + section.size] = section.data
    symbols_section = next(section for section in sections if section.type == _SYMTAB)
    names = sections[symbols_section.link].data
    symbols = list(_SYMBOL.iter_unpack(symbols_section.data))

    def address_of(number: int) -> int:
        name, _, _, section, value, _ = symbols[number]
        if section == 0 or section >= 0xFF00 or sections[section].address < 0:
            raise LinkError(f"symbol {_name(names, name)!r} is not defined in the kernel")
        return int(sections[section].address + value)

    words: list[int] = []
    for section in sections:
        if section.type != _RELA or sections[section.info].address < 0:
            continue
        base = sections[section.info].address
        for offset, info, addend in _RELOCATION.iter_unpack(section.data):
            place = base + offset
            target = address_of(info >> 32) + addend
            if relocations.write(memory, machine, info & 0xFFFFFFFF, place, target):
                words.append(place)
    entries = [number for number, symbol in enumerate(symbols) if _name(names, symbol[0]) == entry]
    if not entries:
        raise LinkError(f"no function {entry!r}")
    return bytes(memory), address_of(entries[0]), words


def lay_out(arguments: Sequence[Argument]) -> tuple[list[int], int]:
    """Offsets in the packed block, each aligned to the argument's size, and the block's size."""
    offsets, end = [], 0
    for argument in arguments:
        end = -(-end // argument.size) * argument.size
        offsets.append(end)
        end += argument.size
    return offsets, end


def build(
    elf: bytes,
    *,
    name: str,
    entry: str,
    arguments: Sequence[Argument],
    scratch_size: int,
    cpu_features: int,
    cost_per_program: int,
) -> bytes:
    code, entry_offset, words = _link(elf, entry)
    offsets, packed_size = lay_out(arguments)
    table = b"".join(
        abi.KERNEL_ARGUMENT.pack(argument.kind, argument.size, offset, 0)
        for argument, offset in zip(arguments, offsets, strict=True)
    )
    relocations_offset = -(-(abi.KERNEL_IMAGE_HEADER.size + len(table)) // 8) * 8
    code_offset = -(-(relocations_offset + 8 * len(words)) // PAGE) * PAGE
    header = abi.KERNEL_IMAGE_HEADER.pack(
        abi.KERNEL_IMAGE_MAGIC,
        abi.KERNEL_IMAGE_VERSION,
        abi.KERNEL_IMAGE_HEADER.size,
        code_offset + len(code),
        cpu_features,
        code_offset,
        len(code),
        entry_offset,
        relocations_offset,
        len(words),
        len(arguments),
        packed_size,
        min(cost_per_program, 0xFFFFFFFF),
        scratch_size,
        name.encode()[:127],
    )
    image = bytearray(code_offset)
    image[: len(header)] = header
    image[abi.KERNEL_IMAGE_HEADER.size : abi.KERNEL_IMAGE_HEADER.size + len(table)] = table
    for number, place in enumerate(words):
        struct.pack_into("<Q", image, relocations_offset + 8 * number, place)
    return bytes(image) + code


def read(image: bytes) -> Image:
    """The header of an image; raises LinkError if it is none."""
    if len(image) < abi.KERNEL_IMAGE_HEADER.size:
        raise LinkError("not a kernel image")
    fields = abi.KERNEL_IMAGE_HEADER.unpack_from(image)
    magic, version, header_size, size, features, code_offset, code_size, entry, relocations_offset = fields[:9]
    num_relocations, num_arguments, packed_size, cost, scratch_size, name = fields[9:]
    if magic != abi.KERNEL_IMAGE_MAGIC or version != abi.KERNEL_IMAGE_VERSION or size != len(image):
        raise LinkError("not a kernel image of this version")
    arguments = tuple(
        abi.KERNEL_ARGUMENT.unpack_from(image, header_size + abi.KERNEL_ARGUMENT.size * number)[:3]
        for number in range(num_arguments)
    )
    return Image(
        name.rstrip(b"\0").decode(),
        arguments,
        packed_size,
        scratch_size,
        code_offset,
        code_size,
        entry,
        struct.unpack_from(f"<{num_relocations}Q", image, relocations_offset),
        features,
        cost,
    )
