"""GPUs, by target: what a multiprocessor has for programs, and how fast the chip is at most.

Limits of CUDA: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability", and the rounding of
cuda_occupancy.h. Limits of AMD: LLVM's AMDGPUBaseInfo.cpp and GCNSubtarget, "Instruction Set Architecture" guides of
CDNA2, CDNA3, CDNA4 and RDNA3. A multiprocessor of RDNA3 is a work-group processor. docs/portability.md says how far the
figures were compared with these.
"""

from __future__ import annotations

from typing import NamedTuple


class Chip(NamedTuple):
    """What one multiprocessor has. Registers are of 32 bits."""

    max_shared: int  # bytes of shared memory that one program can have
    shared: int  # bytes of all programs
    shared_unit: int  # bytes that shared memory is given out in
    reserved_shared: int  # bytes that the system takes for each program
    partitions: int  # each with its own registers and warps
    registers: int  # of a partition: for CUDA of all lanes, for AMD of one lane
    register_unit: int  # that registers of a warp (CUDA), or of a lane (AMD), are given out in
    max_registers: int  # of a thread
    warps: int  # resident in a partition
    programs: int  # resident in a multiprocessor
    max_warps: int  # of one program
    min_dot: int = 1  # elements of the inner dimension of a tl.dot of 16 bits
    tensor_memory: int = 0  # columns of all programs


def _cuda(shared_kib: int, warps: int, programs: int) -> Chip:
    return Chip((shared_kib - 1) << 10, shared_kib << 10, 128, 1024, 4, 16384, 256, 255, warps // 4, programs, 32, 16)


def _cdna(shared_kib: int, shared_unit: int) -> Chip:
    return Chip(shared_kib << 10, shared_kib << 10, shared_unit, 0, 4, 512, 8, 512, 8, 16, 16)


CHIPS: dict[str, Chip] = {
    "cuda:80": _cuda(164, 64, 32),
    "cuda:86": _cuda(100, 48, 16),
    "cuda:89": _cuda(100, 48, 24),
    "cuda:90": _cuda(228, 64, 32),
    "cuda:100": _cuda(228, 64, 32)._replace(tensor_memory=512),
    "cuda:120": _cuda(100, 48, 24),
    "hip:gfx90a": _cdna(64, 512),
    "hip:gfx942": _cdna(64, 512),
    "hip:gfx950": _cdna(160, 1280),
    "hip:gfx1100": Chip(64 << 10, 128 << 10, 1024, 0, 4, 1536, 24, 256, 16, 32, 32),
}


class Peak(NamedTuple):
    """A product, with the figures that its vendor publishes: the most that a chip does in a second, without sparsity.

    Operations are in units of 1e12, a multiplication and an addition being two. Zero: none is published.
    """

    name: str
    target: str
    bandwidth: float  # bytes of device memory, in units of 1e9
    cache: int  # bytes of the last cache before the memory
    tf32: float  # by tensor cores, as the ones that follow
    f16: float
    f8: float
    i8: float
    f64: float
    f32: float  # by tensor cores, or the other units, whichever do more, in full precision
    vector: float  # by other units, of 32 bits
    source: str
    date: str


PEAKS: tuple[Peak, ...] = (
    Peak("A100 SXM 80GB", "cuda:80", 2039, 40 << 20, 156, 312, 0, 624, 19.5, 19.5, 19.5,
         "NVIDIA A100 Tensor Core GPU datasheet", "2021-06"),
    Peak("H100 SXM", "cuda:90", 3350, 50 << 20, 494.7, 989.4, 1978.9, 1978.9, 66.9, 66.9, 66.9,
         "NVIDIA H100 Tensor Core GPU Architecture whitepaper V1.04", "2023-06"),
    Peak("H200 SXM", "cuda:90", 4800, 50 << 20, 494.7, 989.4, 1978.9, 1978.9, 66.9, 66.9, 66.9,
         "NVIDIA H200 Tensor Core GPU datasheet", "2024-11"),
    Peak("B200", "cuda:100", 8000, 126 << 20, 1125, 2250, 4500, 4500, 40, 80, 80,
         "NVIDIA Blackwell Architecture Technical Brief, HGX B200", "2025-03"),
    Peak("MI300X", "hip:gfx942", 5300, 256 << 20, 653.7, 1307.4, 2614.9, 2614.9, 163.4, 163.4, 163.4,
         "AMD Instinct MI300X Accelerator Data Sheet", "2023-12"),
)  # fmt: skip
