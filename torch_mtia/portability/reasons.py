"""Why an access to global memory is narrower than it could be: asked of the compiler itself, which compiles the kernel
again with arguments that count as divisible by 16, and of the layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from torch_mtia.gpu_targets import parse
from torch_mtia.portability import assembly, layout, source, transfer
from torch_mtia.portability.assembly import Access, Code
from torch_mtia.portability.launches import Specialization
from torch_mtia.portability.rows import Row, job
from torch_mtia.portability.source import SourceAccess
from torch_mtia.portability.workers import Answer, Pool

Key: TypeAlias = "tuple[str, int, str]"  # file, line, kind
_WIDE = assembly.WIDEST // 8  # bytes


def explain(rows: Iterable[Row], pool: Pool) -> None:
    """Writes the reasons into rows that compile. Alignment is asked once for each specialization and vendor."""
    groups: dict[tuple[Specialization, str], list[Row]] = {}
    for row in rows:
        if row.code is not None:
            _name_files(row)
            _write_contiguity(row)
            if row.narrow:
                groups.setdefault((row.specialization, row.target.partition(":")[0]), []).append(row)
    first = [group[0] for group in groups.values()]
    asked = [(row, suspects) for row in first if (suspects := _suspects(row.specialization))]
    aligned = _widths(pool, [(row, tuple(suspects)) for row, suspects in asked])
    rest = [
        (row, tuple(place for place in suspects if place != left_out), left_out)
        for (row, suspects), widths in zip(asked, aligned, strict=True)
        if len(suspects) > 1 and _improved(row, widths)
        for left_out in suspects
    ]
    without = _widths(pool, [(row, places) for row, places, _ in rest])
    needed: dict[int, dict[int, Mapping[Key, int]]] = {}
    for (row, _, left_out), widths in zip(rest, without, strict=True):
        needed.setdefault(id(row), {})[left_out] = widths
    all_aligned = {id(row): widths for (row, _), widths in zip(asked, aligned, strict=True)}
    for group in groups.values():
        widths = all_aligned.get(id(group[0]), {})
        for row in group:
            for access in row.narrow:
                row.reasons[_key(access)] = _reason(row, access, widths, needed.get(id(group[0]), {}))


def _file(row: Row, name: str) -> str:
    """A file of the kernel's source. Triton's cache finds a kernel by its text, and may have it from another folder."""
    files = {each.file for each in source.accesses(row.specialization.compiled)}
    return name if name in files else row.file


def _name_files(row: Row) -> None:
    assert row.code is not None
    row.code = row.code._replace(
        accesses=tuple(each._replace(file=_file(row, each.file)) for each in row.code.accesses),
        shared_accesses=tuple(each._replace(file=_file(row, each.file)) for each in row.code.shared_accesses),
    )


def _key(access: Access) -> Key:
    return access.file, access.line, access.kind


def _suspects(specialization: Specialization) -> dict[int, str]:
    """The arguments that are not known to be divisible by 16, by position."""
    kinds, attributes = specialization.source.signature, specialization.source.attrs
    return {
        place: name
        for place, (name, kind) in enumerate(kinds.items())
        if isinstance(kind, str)
        and (kind.startswith("*") or kind in ("i32", "i64", "u32", "u64"))
        and ["tt.divisibility", 16] not in attributes.get((place,), [])
    }


def _widths(pool: Pool, asked: list[tuple[Row, tuple[int, ...]]]) -> list[Mapping[Key, int]]:
    """The narrowest widths with these arguments aligned; none where it does not compile."""
    jobs = [
        job(row.specialization, transfer.encode(row.specialization.source), parse(row.target), places)
        for row, places in asked
    ]
    return [_narrowest(row, answer) for (row, _), answer in zip(asked, pool.answers(jobs), strict=True)]


def _narrowest(row: Row, answer: Answer) -> Mapping[Key, int]:
    if "error" in answer:
        return {}
    code: Code = assembly.read(answer["files"], answer["metadata"], answer["resources"], answer["sass"])
    return {(_file(row, each.file), each.line, each.kind): each.narrowest for each in code.accesses}


def _improved(row: Row, widths: Mapping[Key, int]) -> bool:
    return any(widths.get(_key(access), 0) > access.narrowest for access in row.narrow)


def _reason(row: Row, access: Access, aligned: Mapping[Key, int], needed: Mapping[int, Mapping[Key, int]]) -> str:
    """Why an access is narrow; "": it is as wide as what a thread has."""
    key, best = _key(access), aligned.get(_key(access), 0)
    found = _source_accesses(row, access)
    if best > access.narrowest:
        suspects = _suspects(row.specialization)
        names = [suspects[place] for place, widths in needed.items() if widths.get(key, 0) < best]
        return f"{best} bits if {_divisible(names or list(suspects.values()), found)}"
    reasons = [_shape_reason(row, each) for each in found]
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def _source_accesses(row: Row, access: Access) -> list[SourceAccess]:
    """Those of the line."""
    accesses = source.accesses(row.specialization.compiled)
    return [each for each in accesses if (each.file, each.line, each.kind) == _key(access)]


def _divisible(names: list[str], found: list[SourceAccess]) -> str:
    address = frozenset[str]().union(*(each.address for each in found))
    mask = frozenset[str]().union(*(each.mask for each in found))
    shown = [f"{name} (in the mask)" if name in mask - address else name for name in names]
    return f"{' and '.join(shown)} were divisible by 16"


def _shape_reason(row: Row, found: SourceAccess) -> str:
    if not found.shape:
        return "a single element"
    if found.adjacent is None:
        strides = [f"{stride} bytes" for stride in found.strides if stride]
        if strides and None not in found.strides:
            return f"neighbouring elements are {' and '.join(strides)} apart"
        return "no two elements are known to be neighbours in memory"
    for each in _layouts(row, found):
        elements = 1
        for size in each.shape:
            elements *= size
        each_thread = elements // each.layout.threads()
        if each_thread * found.size < _WIDE:
            return f"a thread has {max(each_thread, 1)} of the elements, of {found.size} bytes"
    return ""


def _layouts(row: Row, found: SourceAccess) -> list[layout.Placed]:
    if "ttgir" not in row.files:
        return []
    text = Path(row.files["ttgir"]).read_text()
    return [
        each
        for each in layout.placed(text)
        if (_file(row, each.file), each.line, each.kind, each.shape)
        == (found.file, found.line, found.kind, found.shape)
    ]


def _write_contiguity(row: Row) -> None:
    """How many bytes one after the other a warp accesses, by the layouts in TTGIR and the strides in the source."""
    for found in source.accesses(row.specialization.compiled):
        if not found.shape or found.kind == "atomic":
            continue
        key = (found.file, found.line, found.kind)
        if found.adjacent is None:
            row.contiguous[key] = 0 if None not in found.strides else None
            continue
        lengths = [layout.contiguous_bytes(each, found.adjacent, found.size) for each in _layouts(row, found)]
        if lengths:
            row.contiguous[key] = min(lengths)
