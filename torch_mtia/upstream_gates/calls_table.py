"""Rows of what takes time in every call of compiled code: Python functions that builtin ones stand in for."""

from __future__ import annotations

from torch_mtia import _C, torch_version
from torch_mtia.upstream_gates.deferred import dynamo
from torch_mtia.upstream_gates.gate import Gate, Reason

CALL_GATES: tuple[Gate, ...] = (
    Gate(
        name="get_current_stream",
        modules=("torch._dynamo.utils",),
        reason=Reason.SPEED,
        why="Where there is an accelerator, every compiled call, also of the CPU, asks for the current stream before "
        "the graph. In Python, that took a tenth of the call of a small kernel.",
        replace=_C._make_get_current_stream,
        versions=torch_version.before(2, 15),  # from then on it is a builtin function
    ),
    Gate(
        name="store_user_object_weakrefs",
        modules=("torch._dynamo.graph_bytecode_inputs",),
        reason=Reason.SPEED,
        why="Every compiled call keeps the current stream for its graph, by a function in Python.",
        replace=dynamo.store_weak_references,
        versions=torch_version.before(2, 15),  # from then on that is one call, into a new list
    ),
    Gate(
        name="_DeviceGuard",
        modules=("torch.mtia",),
        reason=Reason.MISSING,
        why="Generated code enters the device by a class of Python; `torch.cuda` has a quicker one for it.",
        replace=lambda _original: _C.DeviceGuard,
    ),
)
