"""The parameters that the function of one program has after the kernel's own arguments."""

from __future__ import annotations

from torch_mtia.triton.llvm_value import Value

CONTEXT = Value("%context", "ptr")  # mtia_kernel_context
SCRATCH = Value("%scratch", "ptr")
HOST_OFFSET = Value("%host_offset", "i64", divisor=4096)
PROGRAM = tuple(Value(f"%program_{axis}", "i32", nonnegative=True) for axis in "xyz")
GRID = tuple(Value(f"%grid_{axis}", "i32", nonnegative=True) for axis in "xyz")
