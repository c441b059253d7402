"""What the compiled code of a kernel says: registers, spills, stack, accesses to global memory, matrix instructions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch_mtia.portability import banks
from torch_mtia.portability.banks import SharedAccess

WIDEST = 128  # bits of one thread's access to global memory


class Access(NamedTuple):
    """An access to global memory in the source."""

    file: str
    line: int
    kind: str  # "load", "store" or "atomic"
    widths: Mapping[int, int]  # how many instructions access so many bits of each thread; 0: a whole tile, by TMA

    @property
    def narrowest(self) -> int:
        return min(self.widths)


class Code(NamedTuple):
    registers: int  # of a thread
    allocated: int  # registers that a thread takes: of AMD more than it uses, if `waves_per_eu` bounds resident waves
    spilled: int  # bytes of a thread that are stored because there are no registers for them
    stack: int  # bytes of a thread
    shared: int  # bytes of a program
    warps: int  # of a program
    matrix: tuple[str, ...]  # the instructions of tensor cores, or matrix cores
    accesses: tuple[Access, ...]
    shared_accesses: tuple[SharedAccess, ...]  # of CUDA


def read(files: Mapping[str, str], metadata: Mapping[str, Any], resources: str, sass: str) -> Code:
    """Returns what the files of a compiled kernel say.

    Args:
        files: paths by kind, as Triton's cache has them.
        metadata: Triton's.
        resources: of CUDA, what `cuobjdump --dump-resource-usage` prints.
        sass: of CUDA, the machine code of a kernel that uses local memory.
    """
    shared, warps = int(metadata["shared"]), int(metadata["num_warps"])
    if "ptx" in files:
        text = Path(files["ptx"]).read_text()
        registers, stack, local = (_number(rf"\b{name}:(\d+)", resources) for name in ("REG", "STACK", "LOCAL"))
        allocated = registers
        matrix = re.findall(r"\b(wgmma\.mma_async|tcgen05\.mma|mma\.sync)\b", text)
        lines = list(located(text))
        spilled, accesses = spilled_bytes(sass), _of_ptx(lines)
        shared_accesses = banks.shared_accesses(lines, banks.WARP * warps)
        stack += local
    else:
        text = Path(files["amdgcn"]).read_text()
        registers, stack, spilled = (
            _number(rf"\.{name}:\s+(\d+)", text)
            for name in ("vgpr_count", "private_segment_fixed_size", "vgpr_spill_count")
        )
        allocated = _number(r"\.amdhsa_next_free_vgpr\s+(\d+)", text)
        spilled *= 4
        matrix = re.findall(r"\bv_(s?mfmac?|s?wmmac?)_", text)
        accesses, shared_accesses = _of_amdgcn(text), []
    names = tuple(sorted({name.removesuffix("_async") for name in matrix}))
    return Code(
        registers, allocated, spilled, stack, shared, warps, names, tuple(_by_line(accesses)), tuple(shared_accesses)
    )


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"the compiled code does not say {pattern}")
    return int(match[1])


def spilled_bytes(sass: str) -> int:
    """Returns how many bytes a thread's instructions store in local memory, as ptxas counts spills."""
    return sum(int(width or 32) // 8 for width in re.findall(r"\bSTL(?:\.U?S?(8|16|64|128))?\b", sass))


_PTX_GLOBAL = re.compile(
    r"\b(?P<op>ld|st|atom|red)\.(?P<modifiers>[\w.:]*\bglobal[\w.:]*)"
    r"|\bcp\.async\.c[ag]\.shared\.global[\w.:]*\s*\[[^\]]*\],\s*\[[^\]]*\],\s*(?P<copied>0x[0-9a-f]+|\d+)"
    r"|\bcp\.async\.bulk\.tensor[\w.]*?\.(?P<bulk>shared|global)"
)


def located(text: str) -> Iterator[tuple[str, int, str]]:
    """Returns the lines of assembly, each with its file and line in the source."""
    files = {
        number: f"{folder}/{name}" if name else folder
        for number, folder, name in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?', text, re.MULTILINE)
    }
    place = ("", 0)
    for line in text.splitlines():
        if match := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", line):
            if match[2] != "0":
                place = (files.get(match[1], ""), int(match[2]))
        else:
            yield (*place, line)


def _of_ptx(lines: Iterable[tuple[str, int, str]]) -> Iterator[tuple[str, int, str, int]]:
    """File, line, kind and bits of each access."""
    for file, number, line in lines:
        match = _PTX_GLOBAL.search(line)
        if match is None:
            continue
        if match["copied"]:
            yield file, number, "load", 8 * int(match["copied"], 0)
        elif match["bulk"]:
            yield file, number, "load" if match["bulk"] == "shared" else "store", 0
        else:
            kind = {"ld": "load", "st": "store"}.get(match["op"], "atomic")
            yield file, number, kind, _ptx_bits(match["modifiers"])


def _ptx_bits(modifiers: str) -> int:
    """Of `global.v4.b32`, `global.gpu.acq_rel.add.noftz.f16x2`."""
    lanes, bits = 1, 8
    for part in modifiers.split("."):
        if match := re.fullmatch(r"v([248])", part):
            lanes = int(match[1])
        elif match := re.fullmatch(r"[bsuf]f?(8|16|32|64|128)(x2)?", part):
            bits = int(match[1]) * (2 if match[2] else 1)
    return lanes * bits


_GCN_SIZES = {"dword": 32, "short": 16, "ushort": 16, "sshort": 16, "ubyte": 8, "sbyte": 8, "byte": 8}
_GCN_GLOBAL = re.compile(r"^\s*(?:global|buffer|flat)_(?P<kind>load|store|atomic)_(?P<what>\w+)")


def _of_amdgcn(text: str) -> Iterator[tuple[str, int, str, int]]:
    for file, number, line in located(text):
        if match := _GCN_GLOBAL.match(line):
            yield file, number, match["kind"], _gcn_bits(match["what"])


def _gcn_bits(what: str) -> int:
    """Of `dwordx4`, `b128`, `short_d16_hi`, `u16`, `d16_b16`, `pk_add_f16`."""
    if match := re.search(r"dwordx(\d)", what):
        return 32 * int(match[1])
    if match := re.search(r"\b(?:\w*_)?[biuf](8|16|32|64|96|128)\b", what):
        return int(match[1])
    return next((bits for name, bits in _GCN_SIZES.items() if name in what), 32)


def _by_line(accesses: Iterator[tuple[str, int, str, int]]) -> Iterator[Access]:
    found: dict[tuple[str, int, str], Counter[int]] = {}
    for file, line, kind, bits in accesses:
        found.setdefault((file, line, kind), Counter())[bits] += 1
    for (file, line, kind), widths in sorted(found.items()):
        yield Access(file, line, kind, dict(widths))
