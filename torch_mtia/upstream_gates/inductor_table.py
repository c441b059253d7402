"""The part of table.py for Inductor: lowerings, autotuning, generated code and its graphs."""

from __future__ import annotations

import torch

from torch_mtia import _C, torch_version
from torch_mtia.backend import device_type
from torch_mtia.inductor import decompositions
from torch_mtia.upstream_gates.deferred import (
    autotuning,
    dynamo,
    fusion,
    graphs,
    inductor,
    packages,
)
from torch_mtia.upstream_gates.gate import Gate, Reason

GATES: tuple[Gate, ...] = (
    Gate(
        name="decompositions[masked_fill]",
        modules=("torch._inductor.decomposition",),
        reason=Reason.DEVICES,
        why="A mask filled with a scalar tensor of the CPU is refused for devices that are not listed.",
        replace=decompositions.masked_fill_of_a_scalar,
        entry=lambda: torch.ops.aten.masked_fill.Tensor,
        versions=torch_version.before(2, 15),
    ),
    Gate(
        name="decompositions[index_add]",
        modules=("torch._inductor.decomposition",),
        reason=Reason.SPEED,
        why="It becomes an atomic addition of each element, which x86 has not for floating-point numbers.",
        replace=decompositions.whole,
        entry=lambda: torch.ops.aten.index_add.default,
    ),
    Gate(
        name="select_decomp_table",
        modules=("torch._inductor.decomposition", "torch._inductor.compile_fx"),
        reason=Reason.DEVICE,
        why="Sums that are decomposed add up in another order than eager ones, which torch_mtia.numerics rules out.",
        replace=inductor.without_eager_sums,
    ),
    Gate(
        name="compile_fx",
        modules=("torch._inductor.compile_fx",),
        reason=Reason.DEVICE,
        why="Under torch_mtia.numerics, functions are compiled with options that promise bits.",
        replace=inductor.compiled_in_the_mode,
    ),
    Gate(
        name="GuardBuilder.GLOBAL_STATE",
        modules=("torch._dynamo.guards",),
        reason=Reason.DEVICE,
        why="A function is compiled again for another mode of torch_mtia.numerics, as for one of "
        "torch.use_deterministic_algorithms.",
        replace=dynamo.guard_on_numerics,
    ),
    Gate(
        name="lowerings[bmm.dtype]",
        modules=("torch._inductor.lowering",),
        reason=Reason.DEVICES,
        why="bmm(out_dtype=...) is refused for devices that are not listed. A matmul that is divided along K is such a "
        "product, of a graph that no pass rewrites.",
        replace=inductor.lowered_product_of_another_dtype,
        entry=lambda: torch.ops.aten.bmm.dtype,
        filled_by="torch._inductor.kernel.bmm",
    ),
    Gate(
        name="CacheBase.get_local_cache_path",
        modules=("torch._inductor.codecache",),
        reason=Reason.CUDA,
        why="The file with the times of choices that were measured is one for each GPU, and for all other devices.",
        replace=inductor.times_of_the_device,
    ),
    Gate(
        name="AOTAutogradCacheDetails.__init__",
        modules=("torch._functorch._aot_autograd.autograd_cache",),
        reason=Reason.FAULT,
        why="Where two inputs are views of one storage and one is written, their offsets are constants in the code, "
        "but not in the key of the cache: code for other offsets is found, which gives wrong results.",
        issue="aot_autograd_cache.patch",
        replace=inductor.views_in_the_key,
    ),
    Gate(
        name="fx_graph_cse",
        modules=("torch._functorch.compile_utils", "torch._functorch.partitioners", "torch._inductor.freezing"),
        reason=Reason.FAULT,
        why="Of two equal operators with several results one is dropped, even if results of both are returned: they "
        "share memory then, and a backward writes over what the user has, as it takes it for its own copy.",
        issue="fx_graph_cse.md",
        replace=inductor.results_apart,
    ),
    Gate(
        name="check_nan",
        modules=("torch._inductor.codegen.common",),
        reason=Reason.FAULT,
        why="runtime_triton_nan_asserts checks what lies beyond a tensor's end too, where log(0) is no error.",
        issue="nan_asserts_beyond_the_mask.md",
        replace=inductor.check_nan_within_mask,
    ),
    Gate(
        name="inductor_choices_class",
        modules=("torch._inductor.config",),
        reason=Reason.DEVICE,
        why="Inductor asks this setting, which is meant for other packages, how to divide work into programs.",
        replace=inductor.choices_for_mtia,
    ),
    Gate(
        name="python_subprocess_env",
        modules=(
            "torch._inductor.utils",
            "torch._inductor.compile_worker.subproc_pool",
            "torch._inductor.autotune_process",
            "torch._inductor.cpu_vec_isa",
        ),
        reason=Reason.DEVICE,
        why="Inductor's worker processes load the device as `import torch` does, also if it was imported by name.",
        replace=inductor.environment_with_autoload,
    ),
    Gate(
        name="cached_autotune",
        modules=("torch._inductor.runtime.triton_heuristics",),
        reason=Reason.DEVICE,
        why="It takes the class of the autotuner as an argument, and is called without: kernels of the device have one "
        "that launches by a builtin function, knows block sizes for the device, and stores images for packages.",
        replace=inductor.autotuned_on_mtia,
    ),
    Gate(
        name="is_big_gpu",
        modules=("torch._inductor.utils",),
        reason=Reason.CUDA,
        why="Inductor has GEMM templates for devices of 68 processors or more; mtia has as many as its host has cores.",
        replace=inductor.is_big_device,
    ),
    Gate(
        name="get_gpu_type",
        modules=(
            "torch._inductor.utils",
            "torch._inductor.fx_passes.joint_graph",
            "torch._inductor.fx_passes.post_grad",
            "torch._inductor.autotune_process",
            "torch._inductor.codegen.cpp_wrapper_gpu",
        ),
        reason=Reason.CUDA,
        why="It asserts that a process has one kind of GPU, so that with this device beside it code for another one "
        "cannot be compiled.",
        replace=inductor.the_other_gpu,
    ),
    Gate(
        name="_visible_device_env_var_maps",
        modules=("torch._inductor.autotune_process",),
        reason=Reason.DEVICES,
        why="A process that measures choices ends at once if no variable is known that hides devices of its kind. "
        "Nothing reads that of mtia: its devices are identified by index.",
        replace=lambda variables: variables | {device_type(): f"{device_type().upper()}_VISIBLE_DEVICES"},
        by_name=True,
        versions=torch_version.since(2, 14),
    ),
    Gate(
        name="get_max_num_sms",
        modules=("torch._inductor.utils",),
        reason=Reason.CUDA,
        why="It asks torch.cuda for the number of processors whatever the device.",
        replace=inductor.number_of_processors,
    ),
    Gate(
        name="DebugFormatter.log_autotuning_results",
        modules=("torch._inductor.debug",),
        reason=Reason.CUDA,
        why="The log of autotuning names torch.cuda's device, and raises where there is none.",
        replace=inductor.log_of_mtia,
    ),
    Gate(
        name="get_split_k",
        modules=("torch._inductor.kernel.flex.flex_decoding",),
        reason=Reason.CUDA,
        why="FlexAttention for few queries divides the keys by the number of processors of torch.cuda's device.",
        replace=inductor.split_keys,
    ),
    Gate(
        name="needs_fallback_due_to_atomic_add_limitations",
        modules=("torch._inductor.utils", "torch._inductor.lowering"),
        reason=Reason.SPEED,
        why="It says for a GPU where atomic additions are slow: x86 has none of floating-point numbers.",
        replace=inductor.atomic_additions_are_slow,
    ),
    Gate(
        name="fallback_node_due_to_unsupported_type",
        modules=("torch._inductor.lowering", "torch._inductor.graph"),
        reason=Reason.DEVICE,
        why="Operators are inlined into one kernel without a limit on its buffers; this decides about each of them.",
        replace=inductor.keeps_to_buffer_limit,
    ),
    Gate(
        name="check_multiple_devices_or_any_cpu_nodes",
        modules=("torch._inductor.cudagraph_utils",),
        reason=Reason.DEVICES,
        why="mode='reduce-overhead' skips graphs, silently, unless their one device is a CUDA device.",
        replace=graphs.one_device_may_be_mtia,
    ),
    Gate(
        name="cudagraphify",
        modules=("torch._inductor.compile_fx",),
        reason=Reason.CUDA,
        why="mode='reduce-overhead' records and replays CUDA graphs only. The other way in, config.cudagraph_policy, "
        "takes whole functions and not the parts between what cannot be captured.",
        replace=graphs.graphs_on_mtia,
    ),
    Gate(
        name="maybe_handle_backward_generation",
        modules=("torch._inductor.output_code",),
        reason=Reason.CUDA,
        why="A backward that is not recorded looks for the CUDA graphs of its forward, and asserts there are some.",
        replace=graphs.backward_without_trees,
    ),
    Gate(
        name="DEVICE_TO_ATEN",
        modules=("torch._inductor.codegen.cpp_utils", "torch._inductor.codegen.cpp_wrapper_cpu"),
        reason=Reason.DEVICES,
        why="C++ code is generated for listed devices.",
        replace=packages.named_in_cpp,
        versions=torch_version.before(2, 15),  # from then on DeviceOpOverrides says it
        by_name=True,
    ),
    Gate(
        name="get_cpp_torch_device_options",
        modules=("torch._inductor.cpp_builder",),
        reason=Reason.DEVICES,
        why="Generated C++ is compiled with the headers and libraries of listed devices.",
        replace=packages.built_for_mtia,
    ),
    Gate(
        name="get_cpp_wrapper_config",
        modules=("torch._inductor.compile_fx",),
        reason=Reason.CUDA,
        why="With cpp_wrapper, kernels are compiled at the first call, by a header that includes CUDA's.",
        replace=packages.kernels_with_the_code,
    ),
    Gate(
        name="GraphLowering.codegen_with_cpp_wrapper",
        modules=("torch._inductor.graph",),
        reason=Reason.DEVICES,
        why="Kernels of a package are tuned before it is written on listed devices only.",
        replace=packages.tuned_before_it_is_written,
        versions=torch_version.before(2, 15),  # from then on DeviceOpOverrides says it
    ),
    Gate(
        name="_is_gpu_triton_backend",
        modules=("torch._inductor.scheduler",),
        reason=Reason.DEVICES,
        why="Reductions over different dimensions of one tensor are fused on listed devices only.",
        replace=fusion.reductions_of_one_tensor,
    ),
    Gate(
        name="prepare_softmax_extra_check",
        modules=("torch._inductor.fx_passes.post_grad",),
        reason=Reason.DEVICES,
        why="A softmax over rows that are longer than a block reads them twice, not three times, on listed devices.",
        replace=fusion.online_softmax,
    ),
    Gate(
        name="check_device",
        modules=("torch._inductor.fx_passes.pad_mm",),
        reason=Reason.DEVICES,
        why="Operands of products are padded, where force_shape_pad asks for it, on listed devices.",
        replace=fusion.padded_where_asked_for,
    ),
    Gate(
        name="is_b2b_gemm_good_on",
        modules=("torch._inductor.fx_passes.b2b_gemm",),
        reason=Reason.DEVICES,
        why="Two products in a row become one kernel, where b2b_gemm_pass asks for it, on listed devices.",
        replace=fusion.products_in_a_row,
    ),
    Gate(
        name="use_native_matmul",
        modules=("torch._inductor.kernel.mm_common", "torch._inductor.kernel.mm", "torch._inductor.kernel.bmm"),
        reason=Reason.DEVICES,
        why="Products are generated as reductions, where native_matmul asks for it, on listed devices.",
        replace=fusion.products_as_reductions,
    ),
    Gate(
        name="AlgorithmSelectorCache.benchmark_choices",
        modules=("torch._inductor.select_algorithm",),
        reason=Reason.DEVICE,
        why="Choices are measured one after the other, and the shortest time wins, by however little: on a processor "
        "that others use as well, and beside operators that are as quick as their templates, that is chance.",
        replace=autotuning.measured_in_turns,
    ),
    Gate(
        name="AlgorithmSelectorCache.benchmark_in_sub_process",
        modules=("torch._inductor.select_algorithm",),
        reason=Reason.DEVICE,
        why="Choices are measured one after the other in another process, which makes up the blocks of "
        "FlexAttention's masks: a kernel that finds none has nothing to do.",
        replace=autotuning.measured_in_turns_elsewhere,
    ),
    Gate(
        name="AsyncAutotuner.get_results",
        modules=("torch._inductor.autotune_process",),
        reason=Reason.DEVICE,
        why="With pipeline_max_autotune_gemm, choices are measured one after the other, and chance decides.",
        replace=autotuning.measured_in_turns_in_the_pipeline,
    ),
    Gate(
        name="AsyncAutotuner.start",
        modules=("torch._inductor.autotune_process",),
        reason=Reason.DEVICE,
        why="With pipeline_max_autotune_gemm, another process measures while this one compiles, on the same cores.",
        replace=autotuning.measured_while_nothing_is_compiled,
    ),
    Gate(
        name="AlgorithmSelectorCache.__call__",
        modules=("torch._inductor.select_algorithm",),
        reason=Reason.FAULT,
        why="With pipeline_max_autotune_gemm, custom operators and FlexAttention, whose choice lowering needs at once, "
        "have no times: they are measured in this process.",
        issue="pipelined_autotuning.md",
        replace=autotuning.chosen_at_once_where_the_choice_is_needed,
    ),
    Gate(
        name="TuningProcessPool.benchmark",
        modules=("torch._inductor.autotune_process",),
        reason=Reason.FAULT,
        why="A thread reads max_autotune_subproc_result_timeout_seconds, and configuration is per thread.",
        issue="pipelined_autotuning.md",
        replace=autotuning.limited_as_configured,
    ),
    Gate(
        name="Benchmarker.benchmark_gpu_with_cuda_graph",
        modules=("torch._inductor.runtime.benchmarking",),
        reason=Reason.CUDA,
        why="Operators of one's own are measured in CUDA graphs, where benchmark_with_cudagraphs asks for it.",
        replace=autotuning.replayed_from_a_graph,
    ),
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
)
