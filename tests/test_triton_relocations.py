"""What the linker of kernel images writes: places that refer to code and data, in x86-64 and in aarch64."""

from __future__ import annotations

import struct

import pytest

pytest.importorskip("llvmlite")

from torch_mtia.triton.relocations import AARCH64, X86_64, LinkError, write


@pytest.mark.parametrize(
    ("kind", "before", "place", "target", "after"),
    [
        pytest.param(275, 0x90000000, 0x1008, 0x4010, 0xF0000000, id="adrp, forwards"),
        pytest.param(275, 0x90000000, 0x4000, 0x1000, 0xB0FFFFE0, id="adrp, backwards"),
        pytest.param(277, 0x91000000, 0x1008, 0x4010, 0x91004000, id="add"),
        pytest.param(278, 0x39400000, 0x1008, 0x4011, 0x39404400, id="load of a byte"),
        pytest.param(284, 0x79400000, 0x1008, 0x4012, 0x79402400, id="load of 2 bytes"),
        pytest.param(285, 0xB9400000, 0x1008, 0x4014, 0xB9401400, id="load of 4 bytes"),
        pytest.param(286, 0xF9400000, 0x1008, 0x4018, 0xF9400C00, id="load of 8 bytes"),
        pytest.param(299, 0x3DC00000, 0x1008, 0x4010, 0x3DC00400, id="load of 16 bytes"),
        pytest.param(283, 0x94000000, 0x100, 0x80, 0x97FFFFE0, id="call, backwards"),
        pytest.param(282, 0x14000000, 0x80, 0x100, 0x14000020, id="jump, forwards"),
        pytest.param(261, 0, 0x100, 0x80, 0xFFFFFF80, id="distance"),
    ],
)
def test_instructions_of_aarch64(kind: int, before: int, place: int, target: int, after: int) -> None:
    memory = bytearray(0x5000)
    struct.pack_into("<I", memory, place, before)
    assert not write(memory, AARCH64, kind, place, target)
    assert f"{struct.unpack_from('<I', memory, place)[0]:#x}" == f"{after:#x}"


@pytest.mark.parametrize(("machine", "kind"), [(X86_64, 1), (AARCH64, 257)])
def test_addresses_are_left_to_who_loads_the_image(machine: int, kind: int) -> None:
    memory = bytearray(32)
    assert write(memory, machine, kind, 8, 0x123456789)
    assert struct.unpack_from("<Q", memory, 8)[0] == 0x123456789


@pytest.mark.parametrize(("kind", "width"), [(2, "<i"), (4, "<i"), (24, "<q")])
def test_distances_of_x86(kind: int, width: str) -> None:
    memory = bytearray(64)
    assert not write(memory, X86_64, kind, 40, 8)
    assert struct.unpack_from(width, memory, 40)[0] == -32


def test_what_is_not_known_raises() -> None:
    with pytest.raises(LinkError, match="relocation of kind 9 for machine 62"):
        write(bytearray(8), X86_64, 9, 0, 0)
