"""The part of table.py for torch.distributed, and for collectives in compiled code."""

from __future__ import annotations

from functools import partial

from torch_mtia import streams, torch_version
from torch_mtia.backend import device_type
from torch_mtia.distributed import BACKEND, attention, symmetric_memory
from torch_mtia.upstream_gates import device_lists, parallel
from torch_mtia.upstream_gates.deferred import checkpoints, collectives, distributed_probes, process_groups
from torch_mtia.upstream_gates.gate import Gate

DISTRIBUTED_GATES: tuple[Gate, ...] = (
    Gate(
        name="_new_process_group_helper",
        modules=("torch.distributed.distributed_c10d",),
        why="A group without a backend is taken for one of gloo where there is no NCCL, and DDP asks it for that one. "
        "Processes that torchrun restarts find in its store the addresses of those that have died, and fail.",
        replace=process_groups.with_the_backend_of_the_accelerator,
        is_needed=distributed_probes.has_no_default_backend,
    ),
    Gate(
        name="monitored_barrier",
        modules=("torch.distributed.distributed_c10d", "torch.distributed"),
        why="It is for gloo only, by name.",
        replace=process_groups.monitored_by_the_store,
        is_needed=distributed_probes.monitors_no_barrier,
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="ProcessGroup._get_sequence_number_for_group",
        modules=("torch._C._distributed_c10d",),
        why="Groups have the sequence numbers of listed backends.",
        replace=process_groups.numbers_of_the_device,
        is_needed=distributed_probes.has_no_sequence_number,
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="_set_pg_timeout",
        modules=("torch.distributed.distributed_c10d",),
        why="It sets the timeout of listed backends.",
        replace=process_groups.with_timeouts_of_the_device,
        is_needed=distributed_probes.sets_no_timeout,
        versions=torch_version.before(2, 14),
    ),
    device_lists.named_instead(
        "_write_files_from_queue",
        "torch.distributed.checkpoint.filesystem",
        "While a checkpoint is written, what is next is copied to the CPU, if torch.cuda is available.",
        {"cuda": lambda: "accelerator"},
    ),
    Gate(
        name="DefaultStager.stage",
        modules=("torch.distributed.checkpoint.staging",),
        why="A stream of its own copies what is saved to the CPU, and does not wait for the step that makes it: the "
        "checkpoint is of a step before, or torn.",
        replace=checkpoints.behind_the_current_stream,
        is_needed=distributed_probes.stages_at_once,
    ),
    Gate(
        name="StateDictStager.__init__",
        modules=("torch.distributed.checkpoint._state_dict_stager",),
        why="What is saved is staged in pinned memory if torch.cuda is available, which registers memory as pinned.",
        replace=checkpoints.pinned_where_not_shared,
        is_needed=distributed_probes.pins_nothing,
    ),
    Gate(
        name="StateDictStager._stage_untyped_storage",
        modules=("torch.distributed.checkpoint._state_dict_stager",),
        why="And here: memory that the device has allocated is pinned.",
        replace=checkpoints.staged_in_pinned_memory,
        is_needed=distributed_probes.stages_unpinned,
    ),
    Gate(
        name="get_gpu_dram_gbps",
        modules=("torch._inductor.utils",),
        why="Schedules for overlap ask Triton's driver for the clock and the width of the memory's bus.",
        replace=collectives.bandwidth_of_the_device,
        is_needed=distributed_probes.has_no_bandwidth,
    ),
    Gate(
        name="get_gpu_dram_gbps",
        modules=("torch.utils._runtime_estimation",),
        why="And so does the estimate of how long operators take.",
        replace=collectives.bandwidth_of_the_device,
        is_needed=distributed_probes.has_no_bandwidth,
        versions=torch_version.before(2, 15),
    ),
    Gate(
        name="get_device_dram_gbps",
        modules=("torch._inductor.utils", "torch.utils._runtime_estimation"),
        why="And so does that estimate, which knows the bandwidth of listed devices.",
        replace=collectives.bandwidth_of_a_device,
        is_needed=distributed_probes.has_no_bandwidth,
        versions=torch_version.since(2, 15),
    ),
    Gate(
        name="get_device_tflops",
        modules=("torch._inductor.utils", "torch.utils._runtime_estimation"),
        why="They take a product for free where torch.cuda is not available.",
        replace=collectives.teraflops_of_the_device,
        is_needed=distributed_probes.has_no_products,
    ),
    Gate(
        name="estimate_nccl_collective_runtime_impl",
        modules=("torch._inductor.comm_analysis",),
        why="Collectives are taken to be those of an A100 with NVLink.",
        replace=collectives.time_of_shared_memory,
        is_needed=distributed_probes.exceeds_memory,
    ),
    Gate(
        name="compute_min_saturation_bytes",
        modules=("torch._inductor.comm_analysis",),
        why="And the sizes of buckets are.",
        replace=collectives.bytes_that_outweigh_the_latency,
        is_needed=distributed_probes.buckets_for_another_latency,
    ),
    device_lists.named_instead(
        "_benchmark_collective_with_cuda_events_impl",
        "torch._inductor.fx_passes.node_runtime_estimation",
        "Collectives are timed by events of torch.cuda.",
        {"cuda": device_type},
        torch_version.before(2, 14),
    ),
    Gate(
        name="AlgorithmSelectorCache.benchmark_collective_choice",
        modules=("torch._inductor.select_algorithm",),
        why="Choices for operators that communicate are timed by torch.cuda.",
        replace=collectives.choices_timed_on_the_device,
        is_needed=distributed_probes.times_no_collective,
    ),
    device_lists.named_instead(
        "AllocateLine._codegen_comm_buffer",
        "torch._inductor.codegen.wrapper",
        "Compiled code allocates symmetric memory on cuda.",
        {"cuda": device_type},
        torch_version.before(2, 15),
        of=lambda arguments: arguments["self"].node,
    ),
    *(
        device_lists.named_instead(
            name,
            "torch._inductor.fx_passes.micro_pipeline_tp",
            "Products are overlapped with collectives where the wheel has NCCL.",
            {"is_nccl_available": lambda: "is_available"},
            of=lambda arguments: [vars(collective) for collective in arguments.values()],
        )
        for name in ("fuse_all_gather_matmul", "fuse_matmul_reduce_scatter")
    ),
    device_lists.device_list(
        "Backend.backend_capability[fake]",
        "torch.distributed.distributed_c10d",
        "The backend for dry runs serves the devices that it lists.",
        is_function=False,
        entry=lambda: "fake",
        filled_by="torch.testing._internal.distributed.fake_pg",
    ),
    *(
        device_lists.named_instead(
            name,
            "torch.distributed._symmetric_memory",
            "Functions of symmetric memory use the streams and events of torch.cuda.",
            {"cuda": device_type},
            versions,
        )
        for name, versions in symmetric_memory.FUNCTIONS_OF_CUDA.items()
    ),
    *(
        Gate(
            name=f"_SymmetricMemory.{name}",
            modules=("torch._C._distributed_c10d",),
            why="A rank or an offset outside of the memory gives a tensor over other memory.",
            replace=symmetric_memory.inside_the_memory,
            is_needed=distributed_probes.accepts_any_offset,
        )
        for name in ("get_buffer", "get_signal_pad")
    ),
    Gate(
        name="Work.__init__",
        modules=("torch.distributed._symmetric_memory",),
        why="What waits for such a function has an event of torch.cuda.",
        replace=collectives.events_of_the_device,
        is_needed=distributed_probes.makes_no_event,
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="_sleep",
        modules=("torch.mtia",),
        why="And torch.cuda._sleep.",
        replace=lambda _: streams.sleep,
        is_needed=lambda original: original is None,
        adds=True,
    ),
    Gate(
        name="DistributedDataParallel._check_comm_hook",
        modules=("torch.nn.parallel.distributed",),
        why="The hooks that compress gradients to bfloat16 are refused without NCCL or XCCL.",
        replace=parallel.any_hook,
        is_needed=distributed_probes.refuses_compression,
    ),
    Gate(
        name="custom_ops",
        modules=("torch.distributed.tensor.experimental._context_parallel._attention",),
        why="Context parallelism knows the attention of CUDA devices.",
        replace=attention.with_rings,
        is_needed=lambda operators: not any("overrideable" in str(operator) for operator in operators),
    ),
    device_lists.named_instead(
        "_AllGatherBase.backward",
        "torch.distributed.nn.functional",
        "The gradient of all_gather_into_tensor is there for listed backends.",
        {"XCCL": BACKEND.upper},
    ),
    Gate(
        name="SyncBatchNorm.forward",
        modules=("torch.nn.modules.batchnorm",),
        why="SyncBatchNorm refuses devices that it does not list.",
        replace=parallel.synchronized_on_mtia,
        is_needed=distributed_probes.synchronizes_no_batch_norm,
    ),
    *(
        Gate(
            name=name,
            modules=("torch._C",),
            why="Copies between devices of one process, of which DataParallel is made, are for CUDA only, and in its "
            "wheels.",
            replace=partial(parallel.copying, ours),
            is_needed=partial(distributed_probes.copies_nothing_of, name),
            adds=True,
        )
        for name, ours in parallel.COPIES.items()
    ),
)
