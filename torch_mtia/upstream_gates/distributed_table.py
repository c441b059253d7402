"""The part of table.py for torch.distributed, and for collectives in compiled code."""

from __future__ import annotations

from torch_mtia import torch_version
from torch_mtia.distributed import attention, symmetric_memory
from torch_mtia.upstream_gates import device_lists
from torch_mtia.upstream_gates.deferred import checkpoints, collectives
from torch_mtia.upstream_gates.gate import Gate, Reason

_ESTIMATES = ("torch.utils._runtime_estimation",) if torch_version.TORCH < (2, 15) else ()

GATES: tuple[Gate, ...] = (
    Gate(
        name="DefaultStager.stage",
        modules=("torch.distributed.checkpoint.staging",),
        reason=Reason.FAULT,
        why="A stream of its own copies what is saved to the CPU, and does not wait for the step that makes it: the "
        "checkpoint is of a step before, or torn.",
        issue="staging_of_checkpoints.md",
        replace=checkpoints.after_the_current_stream,
    ),
    Gate(
        name="StateDictStager.__init__",
        modules=("torch.distributed.checkpoint._state_dict_stager",),
        reason=Reason.CUDA,
        why="What is saved is staged in pinned memory if torch.cuda is available, which pins memory of the CPU.",
        replace=checkpoints.pinned_where_not_shared,
    ),
    Gate(
        name="get_gpu_dram_gbps",
        modules=("torch._inductor.utils", *_ESTIMATES),
        reason=Reason.CUDA,
        why="Schedules for overlap, and the estimate of how long operators take, ask Triton's driver for the clock and "
        "the width of the memory's bus.",
        replace=collectives.bandwidth_of_the_device,
    ),
    Gate(
        name="get_device_dram_gbps",
        modules=("torch._inductor.utils", "torch.utils._runtime_estimation"),
        reason=Reason.DEVICES,
        why="Schedules for overlap, and the estimate of how long operators take, know the bandwidth of listed devices.",
        replace=collectives.bandwidth_of_a_device,
        versions=torch_version.since(2, 15),
    ),
    Gate(
        name="get_device_tflops",
        modules=("torch._inductor.utils", "torch.utils._runtime_estimation"),
        reason=Reason.CUDA,
        why="Schedules for overlap take a product for free where torch.cuda is not available.",
        replace=collectives.teraflops_of_the_device,
    ),
    Gate(
        name="estimate_nccl_collective_runtime_impl",
        modules=("torch._inductor.comm_analysis",),
        reason=Reason.CUDA,
        why="Collectives are taken to be those of an A100 with NVLink.",
        replace=collectives.time_of_shared_memory,
    ),
    Gate(
        name="compute_min_saturation_bytes",
        modules=("torch._inductor.comm_analysis",),
        reason=Reason.CUDA,
        why="The sizes of buckets are those for an A100 with NVLink.",
        replace=collectives.bytes_that_outweigh_the_latency,
    ),
    Gate(
        name="_benchmark_collective_with_cuda_events_impl",
        modules=("torch._inductor.fx_passes.node_runtime_estimation",),
        reason=Reason.CUDA,
        why="Collectives are timed by events of torch.cuda.",
        replace=collectives.timed_by_events_of_the_device,
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="AlgorithmSelectorCache.benchmark_collective_choice",
        modules=("torch._inductor.select_algorithm",),
        reason=Reason.CUDA,
        why="Choices for operators that communicate are timed by torch.cuda.",
        replace=collectives.choices_timed_on_the_device,
    ),
    device_lists.device_list(
        "Backend.backend_capability[fake]",
        "torch.distributed.distributed_c10d",
        "The backend for dry runs serves the devices that it lists.",
        is_function=False,
        entry=lambda: "fake",
        filled_by="torch.testing._internal.distributed.fake_pg",
    ),
    Gate(
        name="get_symm_mem_workspace",
        modules=("torch.distributed._symmetric_memory",),
        reason=Reason.CUDA,
        why="Before a graph is captured, programs ask it for memory, which it allocates on cuda.",
        replace=collectives.workspace_on_the_device,
        versions=torch_version.before(2, 14),
    ),
    *(
        Gate(
            name=f"_SymmetricMemory.{name}",
            modules=("torch._C._distributed_c10d",),
            reason=Reason.FAULT,
            why="A rank or an offset outside of the memory gives a tensor over other memory.",
            issue="symmetric_memory_offsets.md",
            replace=symmetric_memory.inside_the_memory,
        )
        for name in ("get_buffer", "get_signal_pad")
    ),
    Gate(
        name="custom_ops",
        modules=("torch.distributed.tensor.experimental._context_parallel._attention",),
        reason=Reason.DEVICES,
        why="Context parallelism knows the attention of CUDA devices.",
        replace=attention.with_rings,
    ),
    Gate(
        name="_AllGatherBase.backward",
        modules=("torch.distributed.nn.functional",),
        reason=Reason.DEVICES,
        why="The gradient of all_gather_into_tensor is there for listed backends.",
        replace=collectives.with_a_gradient,
    ),
)
