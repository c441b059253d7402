"""The machine code in the file of a compiled kernel. It imports nothing of torch_mtia: tools/on_gpu/compare.py uses it
where that is not installed."""

from __future__ import annotations

import hashlib
import struct

_CODE = (".text", ".rodata", ".nv.constant", ".nv.info.")  # names of sections begin with


def code_sha256(data: bytes) -> str:
    """Returns a hash of the code and the constants in a cubin or hsaco. Names of source files do not change it."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("not a file of ELF, of 64 bits")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, table + size * number) for number in range(count)]
    (*_, texts, _) = sections[names]
    found = []
    for name, kind, _, _, offset, length in sections:
        start = texts + name
        title = data[start : data.index(b"\0", start)].decode()
        if title.startswith(_CODE) and kind != 8:  # of zeros, which take no room
            found.append((title, data[offset : offset + length]))
    digest = hashlib.sha256()
    for title, content in sorted(found):
        digest.update(f"{title} {len(content)}\n".encode() + content)
    return digest.hexdigest()
