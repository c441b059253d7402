"""Rows of what takes time in every call of compiled code: Python functions that builtin ones stand in for."""

from __future__ import annotations

from torch_mtia import _C, torch_version
from torch_mtia.upstream_gates.deferred import dynamo, inductor, inductor_probes
from torch_mtia.upstream_gates.gate import Gate

CALL_GATES: tuple[Gate, ...] = (
    Gate(
        name="CachingAutotuner._build_fast_launcher",
        modules=("torch._inductor.runtime.triton_heuristics",),
        why="Once the configuration of a kernel is chosen, a builtin function launches it on CUDA, elsewhere one in "
        "Python.",
        replace=inductor.builtin_launchers,
        is_needed=inductor_probes.launches_with_python,
    ),
    Gate(
        name="CachingAutotuner.run",
        modules=("torch._inductor.runtime.triton_heuristics",),
        why="What finds that launcher and calls it is Python too, and takes longer than to launch.",
        replace=inductor.builtin_run,
        is_needed=inductor_probes.finds_launchers_with_python,
    ),
    Gate(
        name="get_current_stream",
        modules=("torch._dynamo.utils",),
        why="Where there is an accelerator, every compiled call, also of the CPU, asks for the current stream before "
        "the graph. With the three below it took a quarter of the call of a small kernel, as all are Python functions.",
        replace=_C._make_get_current_stream,
        is_needed=inductor_probes.asks_for_streams_in_python,
        versions=torch_version.before(2, 15),  # from then on it is a builtin function
    ),
    Gate(
        name="store_user_object_weakrefs",
        modules=("torch._dynamo.graph_bytecode_inputs",),
        why="And keeps it for the graph.",
        replace=dynamo.store_weak_references,
        is_needed=inductor_probes.keeps_streams_in_python,
        versions=torch_version.before(2, 15),  # from then on that is one call, into a new list
    ),
    Gate(
        name="record_pregraph_bytecode_enter",
        modules=("torch._dynamo.utils",),
        why="And tells the profiler, if there is one, when the arguments of the graph are made.",
        replace=dynamo.record_enter,
        is_needed=inductor_probes.begins_records_in_python,
    ),
    Gate(
        name="record_pregraph_bytecode_exit",
        modules=("torch._dynamo.utils",),
        why="And that they are.",
        replace=_C._make_record_exit,
        is_needed=inductor_probes.ends_records_in_python,
    ),
    Gate(
        name="_DeviceGuard",
        modules=("torch.mtia",),
        why="Generated code enters the device by a class of Python; `torch.cuda` has a quicker one for it.",
        replace=lambda _original: _C.DeviceGuard,
        is_needed=lambda original: original is None,
        adds=True,
    ),
)
