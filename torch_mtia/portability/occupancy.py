"""How many programs a multiprocessor runs at a time, and what limits them."""

from __future__ import annotations

from typing import NamedTuple

from torch_mtia.portability.chips import Chip

_WARP = 32  # threads of a warp of CUDA, whose registers are given out by the warp


class Occupancy(NamedTuple):
    programs: int  # resident per multiprocessor; 0: not even one fits
    warps: int
    max_warps: int
    # What does not let another program in: "registers", "shared memory", "warps", "tensor memory", "programs".
    limits: tuple[str, ...]


def occupancy(chip: Chip, is_cuda: bool, registers: int, shared: int, warps: int, columns: int = 0) -> Occupancy:
    """Returns the occupancy of a kernel.

    Args:
        chip: of the target.
        is_cuda: whether it gives registers out as NVIDIA's chips do.
        registers: of a thread.
        shared: bytes of shared memory of a program.
        warps: of a program.
        columns: of tensor memory of a program, without which it waits.
    """
    limits = {
        "registers": _by_registers(chip, is_cuda, registers, warps),
        "shared memory": _by_shared_memory(chip, shared),
        "warps": 0 if warps > chip.max_warps else chip.warps * chip.partitions // warps,
        # A program of AMD's with one warp needs none of the barriers that there are so many of.
        "programs": chip.programs if is_cuda or warps > 1 else chip.warps * chip.partitions,
    }
    if columns:
        limits["tensor memory"] = chip.tensor_memory // columns
    programs = min(limits.values())
    return Occupancy(
        programs,
        programs * warps,
        chip.warps * chip.partitions,
        tuple(name for name, limit in limits.items() if limit == programs),
    )


def _by_registers(chip: Chip, is_cuda: bool, registers: int, warps: int) -> int:
    if registers > chip.max_registers:
        return 0
    if not is_cuda:
        return chip.registers // _rounded(max(registers, 1), chip.register_unit) * chip.partitions // warps
    of_warp = _rounded(max(registers, 1) * _WARP, chip.register_unit)
    # The hardware asks for one program as if its warps were spread over all partitions.
    if of_warp * _rounded(warps, chip.partitions) > chip.registers * chip.partitions:
        return 0
    return chip.registers // of_warp * chip.partitions // warps


def _by_shared_memory(chip: Chip, shared: int) -> int:
    if shared > chip.max_shared:
        return 0
    of_program = _rounded(shared + chip.reserved_shared, chip.shared_unit)
    return chip.shared // of_program if of_program else 1 << 20


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
