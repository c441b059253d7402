"""The names in PyTorch and Triton that are replaced, one row each."""

from __future__ import annotations

import inspect

import torch

from torch_mtia import streams, torch_version
from torch_mtia.distributed import attention, symmetric_memory
from torch_mtia.door import device_type
from torch_mtia.upstream_gates import (
    checkpoints,
    collectives,
    device_lists,
    eager,
    graphs,
    inductor,
    nested,
    parallel,
    process_groups,
    random_state,
)
from torch_mtia.upstream_gates.gate import Gate

_CAPTURABLE_OPTIMIZERS = ("adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop")

GATES: tuple[Gate, ...] = (
    Gate(
        name="_get_capturable_supported_devices",
        modules=("torch.optim.optimizer", *(f"torch.optim.{name}" for name in _CAPTURABLE_OPTIMIZERS)),
        why="Optimizers with capturable=True assert that their parameters are on one of the devices it lists.",
        replace=eager.capturable_on_mtia,
        is_needed=lambda original: "mtia" not in original(),
    ),
    Gate(
        name="profile._parse_kineto_results",
        modules=("torch.autograd.profiler",),
        why="The profiler credits the device's time and memory to operators only for the devices it lists.",
        replace=eager.profile_of_mtia,
        is_needed=lambda original: "DeviceType.MTIA" not in inspect.getsource(original),
    ),
    Gate(
        name="Tensor._reduce_ex_internal",
        modules=("torch._tensor",),
        why="Tensors of mtia are pickled as copies on the CPU: memory that they share is lost, what requires a "
        "gradient cannot be loaded, and a file in the old format loads wrong values.",
        replace=eager.pickled_by_storage,
        is_needed=lambda original: '"maia", "mtia"' in inspect.getsource(original),
    ),
    Gate(
        name="Tensor.__deepcopy__",
        modules=("torch._tensor",),
        why="Tensors of mtia are cloned, so that copies of two that share memory no longer do.",
        replace=eager.copied_by_storage,
        is_needed=lambda original: '"xla", "mtia"' in inspect.getsource(original),
    ),
    Gate(
        name="Tensor.new",
        modules=("torch._tensor",),
        why="The legacy constructor, with which SparseAdam makes its updates, knows a list of devices without mtia.",
        replace=eager.new_on_mtia,
        is_needed=lambda original: "mtia" not in getattr(original, "__module__", ""),
    ),
    Gate(
        name="norm.__code__",
        modules=("torch.functional",),
        why="torch.norm and Tensor.norm are torch.linalg.vector_norm on devices that they list, elsewhere an operator "
        "that DTensor divides wrongly.",
        replace=eager.norm_of_mtia,
        is_needed=lambda code: "mtia" not in code.co_consts,
    ),
    Gate(
        name="is_current_stream_capturing",
        modules=("torch.mtia",),
        why="torch.mtia has no counterpart of torch.cuda.is_current_stream_capturing.",
        replace=eager.is_current_stream_capturing,
        is_needed=lambda original: original is None,
        versions=torch_version.before(2, 15),
    ),
    Gate(
        name="CompiledKernel._init_handles",
        modules=("triton.compiler.compiler",),
        why="A driver of Triton takes any address: one for another device would crash on tensors of mtia. And what "
        "could not be loaded would be launched all the same, the second time.",
        replace=eager.refusing_elsewhere,
        is_needed=lambda original: "mtia" not in inspect.getsource(original),
    ),
    Gate(
        name="CompiledKernel.launch_metadata",
        modules=("triton.compiler.compiler",),
        why="Every launch gathers what only hooks read, hooks or none: half a microsecond of four.",
        replace=eager.no_metadata_without_hooks,
        is_needed=lambda original: "calls" not in inspect.getsource(original),
    ),
    Gate(
        name="_empty_strided_mtia",
        modules=("torch._C._dynamo.guards",),
        why="Code that Inductor generates allocates with it, and in wheels without MTIA it only raises.",
        replace=eager.empty_strided_mtia,
        is_needed=eager.is_compiled_out,
    ),
    Gate(
        name="CacheBase.get_system",
        modules=("torch._inductor.codecache",),
        why="The keys of Inductor's caches name the GPU and Triton, not the version of an out-of-tree backend.",
        replace=inductor.system_with_mtia,
        is_needed=lambda original: "mtia" not in original(),
    ),
    Gate(
        name="fx_graph_cse",
        modules=("torch._functorch.compile_utils", "torch._functorch.partitioners", "torch._inductor.freezing"),
        why="Of two equal operators with several results one is dropped, even if results of both are returned: they "
        "share memory then, and a backward writes over what the user has, as it takes it for its own copy.",
        replace=inductor.results_apart,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="inplaceable_ops",
        modules=("torch._inductor.fx_passes.reinplace",),
        why="A tensor that is put into itself is written to while it is still read: x.index_put((i,), x).",
        replace=inductor.nothing_into_itself,
        is_needed=lambda original: not isinstance(original, inductor._OfMtia),
    ),
    Gate(
        name="run_and_save_rng_state.__class__.__call__",
        modules=("torch._prims.rng_prims",),
        why="Random operators that the backward runs again, with fallback_random, save their state on listed devices.",
        replace=random_state.saving_of_mtia,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="run_with_rng_state.__class__.__call__",
        modules=("torch._prims.rng_prims",),
        why="And run in that state on listed devices.",
        replace=random_state.restoring_of_mtia,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="check_nan",
        modules=("torch._inductor.codegen.common",),
        why="runtime_triton_nan_asserts checks what lies beyond a tensor's end too, where log(0) is no error.",
        replace=inductor.check_nan_within_mask,
        is_needed=lambda original: "mask" not in inspect.getsource(original),
    ),
    Gate(
        name="TritonOverrides.floordiv",
        modules=("torch._inductor.codegen.triton",),
        why="Quotients of narrow integers are int32 in the code: what follows does not wrap around, which gives wrong "
        "results, and reductions in loops do not compile.",
        replace=inductor.quotients_of_their_type,
        is_needed=lambda original: "to_dtype" not in inspect.getsource(original),
    ),
    Gate(
        name="inductor_choices_class",
        modules=("torch._inductor.config",),
        why="Inductor asks this setting, which is meant for other packages, how to divide work into programs.",
        replace=inductor.choices_for_mtia,
        is_needed=lambda original: original is None,
    ),
    Gate(
        name="python_subprocess_env",
        modules=(
            "torch._inductor.utils",
            "torch._inductor.compile_worker.subproc_pool",
            "torch._inductor.autotune_process",
            "torch._inductor.cpu_vec_isa",
        ),
        why="Inductor's worker processes load the device as `import torch` does, also if it was imported by name.",
        replace=inductor.environment_with_autoload,
        is_needed=lambda original: "TORCH_DEVICE_BACKEND_AUTOLOAD" not in original.__code__.co_consts,
    ),
    Gate(
        name="is_big_gpu",
        modules=("torch._inductor.utils",),
        why="Inductor has GEMM templates for devices of 68 processors or more; mtia has as many as its host has cores.",
        replace=inductor.is_big_device,
        is_needed=lambda original: not original(torch.device("mtia", 0)),
    ),
    Gate(
        name="get_max_num_sms",
        modules=("torch._inductor.utils",),
        why="It asks torch.cuda for the number of processors whatever the device.",
        replace=inductor.number_of_processors,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="DebugFormatter.log_autotuning_results",
        modules=("torch._inductor.debug",),
        why="The log of autotuning names torch.cuda's device, and raises where there is none.",
        replace=inductor.log_of_mtia,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="_conv_determine_backend_memory_format",
        modules=("torch._C",),
        why="Says whether a convolution will return channels last, for compiled code, which asserts it; for backends "
        "it does not know it says no. Convolutions of mtia are those of the CPU.",
        replace=inductor.convolution_format,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="hash_storage",
        modules=("torch.utils._content_store",),
        why="The minifier saves the inputs of a graph under names that it computes on listed devices.",
        replace=eager.hash_on_the_cpu,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="_str_intern",
        modules=("torch._tensor_str",),
        why="Tensors of mtia are copied to the CPU to be printed, which fails for those that stand for others in a "
        "traced program: looking for the overload of an operator prints them.",
        replace=eager.functional_tensors_as_they_are,
        is_needed=lambda original: "functional" not in original(torch._to_functional_tensor(torch.empty(0).to("mtia"))),
    ),
    Gate(
        name="jagged_scaled_dot_product_attention",
        modules=("torch.nested._internal.sdpa", "torch.nested._internal.ops"),
        why="Attention over jagged tensors uses kernels of CUDA, or strided nested tensors, which assert that they "
        "are on a listed device.",
        replace=nested.attending_by_sequence,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="get_split_k",
        modules=("torch._inductor.kernel.flex.flex_decoding",),
        why="FlexAttention for few queries divides the keys by the number of processors of torch.cuda's device.",
        replace=inductor.split_keys,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="needs_fallback_due_to_atomic_add_limitations",
        modules=("torch._inductor.utils", "torch._inductor.lowering"),
        why="It says for a GPU where atomic additions are slow: x86 has none of floating-point numbers.",
        replace=inductor.atomic_additions_are_slow,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="fallback_node_due_to_unsupported_type",
        modules=("torch._inductor.lowering", "torch._inductor.graph"),
        why="Operators are inlined into one kernel without a limit on its buffers; this decides about each of them.",
        replace=inductor.keeps_to_buffer_limit,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="_InProcessFxCompile.codegen_and_compile",
        modules=("torch._inductor.compile_fx",),
        why="The limit on buffers holds for combined kernels too, which only a setting bounds.",
        replace=inductor.codegen_within_limit,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    inductor.block_sizes("pointwise", of="pointwise"),
    inductor.block_sizes("_reduction_configs", of="reduction"),
    inductor.block_sizes("_persistent_reduction_configs", of="persistent_reduction"),
    device_lists.device_list(
        "_validate_device", "torch.nn.attention.flex_attention", "FlexAttention refuses devices that it does not list."
    ),
    device_lists.device_list(
        "associative_scan",
        "torch._higher_order_ops.associative_scan",
        "associative_scan in pointwise mode, which becomes one Triton kernel, refuses devices that it does not list.",
        versions=torch_version.before(2, 14),
    ),
    device_lists.device_list(
        "tuned_mm.__wrapped__", "torch._inductor.kernel.mm", "mm(out_dtype=...) is refused for devices not listed."
    ),
    device_lists.device_list(
        "tuned_bmm.__wrapped__", "torch._inductor.kernel.bmm", "bmm(out_dtype=...) is refused for devices not listed."
    ),
    Gate(
        name="check_multiple_devices_or_any_cpu_nodes",
        modules=("torch._inductor.cudagraph_utils",),
        why="mode='reduce-overhead' skips graphs, silently, unless their one device is a CUDA device.",
        replace=graphs.one_device_may_be_mtia,
        is_needed=lambda original: original({torch.device("mtia", 0): None}) is not None,
    ),
    Gate(
        name="cudagraphify",
        modules=("torch._inductor.compile_fx",),
        why="mode='reduce-overhead' records and replays CUDA graphs only. The other way in, config.cudagraph_policy, "
        "takes whole functions and not the parts between what cannot be captured.",
        replace=graphs.graphs_on_mtia,
        is_needed=lambda original: "cudagraph_trees" in inspect.getsource(original),
    ),
    Gate(
        name="maybe_handle_backward_generation",
        modules=("torch._inductor.output_code",),
        why="A backward that is not recorded looks for the CUDA graphs of its forward, and asserts there are some.",
        replace=graphs.backward_without_trees,
        is_needed=lambda original: "cudagraph_trees" in inspect.getsource(original),
    ),
    Gate(
        name="_new_process_group_helper",
        modules=("torch.distributed.distributed_c10d",),
        why="A group without a backend is taken for one of gloo where there is no NCCL, and DDP asks it for that one.",
        replace=process_groups.with_the_backend_of_the_accelerator,
        is_needed=lambda original: "BackendType.GLOO" in inspect.getsource(original),
    ),
    Gate(
        name="monitored_barrier",
        modules=("torch.distributed.distributed_c10d", "torch.distributed"),
        why="It is for gloo only, by name.",
        replace=process_groups.monitored_by_the_store,
        is_needed=lambda original: "Backend.GLOO" in inspect.getsource(original),
    ),
    Gate(
        name="ProcessGroup._get_sequence_number_for_group",
        modules=("torch._C._distributed_c10d",),
        why="Groups have the sequence numbers of listed backends.",
        replace=process_groups.numbers_of_the_device,
        is_needed=lambda original: "mtia" not in (getattr(original, "__module__", None) or ""),
    ),
    Gate(
        name="_set_pg_timeout",
        modules=("torch.distributed.distributed_c10d",),
        why="It sets the timeout of listed backends.",
        replace=process_groups.with_timeouts_of_the_device,
        is_needed=lambda original: "isinstance(backend, ProcessGroupGloo)" in inspect.getsource(original),
    ),
    Gate(
        name="_create_c10d_store",
        modules=("torch.distributed.rendezvous",),
        why="Processes that torchrun restarts find in its store the addresses of those that have died, and fail.",
        replace=process_groups.with_keys_of_this_attempt,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="_write_files_from_queue.__code__",
        modules=("torch.distributed.checkpoint.filesystem",),
        why="While a checkpoint is written, what is next is copied to the CPU, if torch.cuda is available.",
        replace=checkpoints.copying_ahead,
        is_needed=lambda code: "cuda" in code.co_names,
    ),
    Gate(
        name="DefaultStager.stage",
        modules=("torch.distributed.checkpoint.staging",),
        why="A stream of its own copies what is saved to the CPU, and does not wait for the step that makes it: the "
        "checkpoint is of a step before, or torn.",
        replace=checkpoints.behind_the_current_stream,
        is_needed=lambda original: "wait_stream" not in inspect.getsource(original),
    ),
    Gate(
        name="StateDictStager.__init__",
        modules=("torch.distributed.checkpoint._state_dict_stager",),
        why="What is saved is staged in pinned memory if torch.cuda is available, which registers memory as pinned.",
        replace=checkpoints.pinned_where_not_shared,
        is_needed=lambda original: "torch.cuda" in inspect.getsource(original),
    ),
    Gate(
        name="StateDictStager._stage_untyped_storage",
        modules=("torch.distributed.checkpoint._state_dict_stager",),
        why="And here: memory that the device has allocated is pinned.",
        replace=checkpoints.staged_in_pinned_memory,
        is_needed=lambda original: "pin_memory_utils" in inspect.getsource(original),
    ),
    Gate(
        name="get_gpu_dram_gbps",
        modules=("torch._inductor.utils", "torch.utils._runtime_estimation"),
        why="Schedules for overlap ask Triton's driver for the clock and the width of the memory's bus.",
        replace=collectives.bandwidth_of_the_device,
        is_needed=lambda original: "triton.testing" in inspect.getsource(original),
    ),
    Gate(
        name="get_device_tflops",
        modules=("torch._inductor.utils", "torch.utils._runtime_estimation"),
        why="They take a product for free where torch.cuda is not available.",
        replace=collectives.teraflops_of_the_device,
        is_needed=lambda original: "torch.cuda.is_available" in inspect.getsource(original),
    ),
    Gate(
        name="estimate_nccl_collective_runtime_impl",
        modules=("torch._inductor.comm_analysis",),
        why="Collectives are taken to be those of an A100 with NVLink.",
        replace=collectives.time_of_shared_memory,
        is_needed=lambda original: "_nccl_best_algo_time" in inspect.getsource(original),
    ),
    Gate(
        name="compute_min_saturation_bytes",
        modules=("torch._inductor.comm_analysis",),
        why="And the sizes of buckets are.",
        replace=collectives.bytes_that_outweigh_the_latency,
        is_needed=lambda original: "INTERCONNECT_PROFILES" in inspect.getsource(original),
    ),
    Gate(
        name="_benchmark_collective_with_cuda_events_impl.__code__",
        modules=("torch._inductor.fx_passes.node_runtime_estimation",),
        why="Collectives are timed by events of torch.cuda.",
        replace=collectives.on_the_device,
        is_needed=lambda code: collectives.on_the_device(code) != code,
    ),
    Gate(
        name="AlgorithmSelectorCache.benchmark_collective_choice",
        modules=("torch._inductor.select_algorithm",),
        why="Choices for operators that communicate are timed by torch.cuda.",
        replace=collectives.choices_timed_on_the_device,
        is_needed=lambda original: "cuda:" in inspect.getsource(original),
    ),
    Gate(
        name="AllocateLine._codegen_comm_buffer.__code__",
        modules=("torch._inductor.codegen.wrapper",),
        why="Compiled code allocates symmetric memory on cuda.",
        replace=collectives.on_the_device,
        is_needed=lambda code: collectives.on_the_device(code) != code,
    ),
    *(
        Gate(
            name=f"{name}.__code__",
            modules=("torch._inductor.fx_passes.micro_pipeline_tp",),
            why="Products are overlapped with collectives where the wheel has NCCL.",
            replace=collectives.without_nccl,
            is_needed=lambda code: "is_nccl_available" in code.co_names,
        )
        for name in ("fuse_all_gather_matmul", "fuse_matmul_reduce_scatter")
    ),
    *(
        Gate(
            name=f"{name}.__code__",
            modules=("torch.distributed._symmetric_memory",),
            why="Functions of symmetric memory use the streams and events of torch.cuda.",
            replace=collectives.on_the_device,
            is_needed=lambda code: collectives.on_the_device(code) != code,
        )
        for name in symmetric_memory.FUNCTIONS_OF_CUDA
    ),
    Gate(
        name="_sleep",
        modules=("torch.mtia",),
        why="And torch.cuda._sleep.",
        replace=lambda _: streams.sleep,
        is_needed=lambda original: original is None,
    ),
    Gate(
        name="DistributedDataParallel._check_comm_hook",
        modules=("torch.nn.parallel.distributed",),
        why="The hooks that compress gradients to bfloat16 are refused without NCCL or XCCL.",
        replace=parallel.any_hook,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="custom_ops",
        modules=("torch.distributed.tensor.experimental._context_parallel._attention",),
        why="Context parallelism knows the attention of CUDA devices.",
        replace=attention.with_rings,
        is_needed=lambda operators: not any("overrideable" in str(operator) for operator in operators),
    ),
    Gate(
        name="_AllGatherBase.backward.__code__",
        modules=("torch.distributed.nn.functional",),
        why="The gradient of all_gather_into_tensor is there for listed backends.",
        replace=parallel.gradient_by_reduce_scatter,
        is_needed=lambda code: "XCCL" in code.co_names,
    ),
    Gate(
        name="SyncBatchNorm.forward.__code__",
        modules=("torch.nn.modules.batchnorm",),
        why="SyncBatchNorm refuses devices that it does not list.",
        replace=parallel.batch_norm_of_mtia,
        is_needed=lambda code: "mtia" not in code.co_consts,
    ),
    *(
        Gate(
            name=name,
            modules=("torch._C",),
            why="Copies between devices of one process, of which DataParallel is made, are in wheels for CUDA only.",
            replace=replace,
            is_needed=lambda original: original is None,
        )
        for name, replace in parallel.COPIES.items()
    ),
)

# For devices that are not called mtia: see torch_mtia/privateuse1.py.
GATES_OF_OTHER_NAMES: tuple[Gate, ...] = (
    Gate(
        name="GPU_TYPES",
        modules=("torch._inductor.utils",),
        why="Inductor generates Triton kernels, and does what else accelerators need, for devices that it lists.",
        replace=device_lists.append_device,
        is_needed=lambda original: "mtia" in original,
    ),
    Gate(
        name="GPU_BENCHMARK_DEVICE_TYPES",
        modules=("torch._inductor.runtime.benchmarking",),
        why="Kernels are measured on devices that it lists.",
        replace=lambda original: (*original, device_type()),
        is_needed=lambda original: "mtia" in original,
    ),
    device_lists.renamed(
        "has_triton.__wrapped__",
        "torch.utils._triton",
        "It says of devices it lists that they have Triton.",
        versions=torch_version.before(2, 14),
    ),
    device_lists.renamed("is_compile_supported", "torch._dynamo.utils", "It says what torch.compile supports."),
    device_lists.renamed(
        "native_layer_norm.__wrapped__",
        "torch._refs",
        "The dtype that the statistics of layer norm have depends on the device.",
    ),
    Gate(
        name="TransformerEncoder.forward",
        modules=("torch.nn.modules.transformer",),
        why="In evaluation with a padding mask it makes strided nested tensors, and there are none on such a device.",
        replace=nested.padded_as_it_is,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="Module._apply",
        modules=("torch.nn.modules.module",),
        why="A module that moves to such a device gets new parameters, one for each place: what two parts shared, as a "
        "language model its embedding, they no longer would.",
        replace=eager.keeping_what_is_shared,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="_move_states_to_device",
        modules=(
            "torch.distributed.fsdp._fully_shard._fsdp_init",
            "torch.distributed.fsdp._init_utils",
        ),
        why="FSDP sets a parameter's data to what is on the device, which PyTorch refuses for a device of such a name.",
        replace=parallel.swapped,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
)
