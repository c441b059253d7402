"""The part of table.py for Inductor: lowerings, autotuning, generated code and its graphs."""

from __future__ import annotations

import functools

import torch

from torch_mtia import torch_version
from torch_mtia.backend import device_type
from torch_mtia.inductor import decompositions
from torch_mtia.upstream_gates import device_lists
from torch_mtia.upstream_gates.deferred import (
    autotuning,
    fusion,
    graphs,
    inductor,
    inductor_probes,
    packages,
    probes,
)
from torch_mtia.upstream_gates.gate import Gate

INDUCTOR_GATES: tuple[Gate, ...] = (
    Gate(
        name="decompositions[masked_fill]",
        modules=("torch._inductor.decomposition",),
        why="A mask filled with a scalar tensor of the CPU is refused for devices that are not listed.",
        replace=decompositions.masked_fill_of_a_scalar,
        is_needed=inductor_probes.fills_with_no_scalar,
        entry=lambda: torch.ops.aten.masked_fill.Tensor,
        versions=torch_version.before(2, 15),
    ),
    Gate(
        name="decompositions[index_add]",
        modules=("torch._inductor.decomposition",),
        why="It becomes an atomic addition of each element, which x86 has not for floating-point numbers.",
        replace=decompositions.whole,
        is_needed=inductor_probes.divides_index_add,
        entry=lambda: torch.ops.aten.index_add.default,
    ),
    Gate(
        name="decompositions[_scaled_mm]",
        modules=("torch._inductor.decomposition",),
        why="Upstream's lowering of a scaled product leaves out the scale of its result.",
        replace=decompositions.with_the_scale_of_the_result,
        is_needed=inductor_probes.leaves_out_the_scale,
        entry=lambda: torch.ops.aten._scaled_mm.default,
    ),
    Gate(
        name="decompositions[addmm]",
        modules=("torch._inductor.decomposition",),
        why="Its lowering drops the bias of no dimensions that ATen's kernel is given, where that is the quickest.",
        replace=decompositions.with_a_dimension,
        is_needed=inductor_probes.drops_a_bias,
        entry=lambda: torch.ops.aten.addmm.default,
    ),
    *(
        Gate(
            name=f"decompositions[{name}]",
            modules=("torch._inductor.decomposition",),
            why="Its lowering counts the elements of several dimensions in the order of memory.",
            replace=functools.partial(decompositions.of_one_dimension, name),
            is_needed=functools.partial(inductor_probes.counts_in_order_of_memory, name),
            entry=functools.partial(getattr, getattr(torch.ops.aten, name), "default"),
            versions=torch_version.before(2, 15),
        )
        for name in ("argmax", "argmin")
    ),
    Gate(
        name="_maybe_layout_constraints[adaptive_max_pool3d_backward]",
        modules=("torch._inductor.lowering",),
        why="ATen's kernel reads indices as if they were contiguous; compiled code gives it some with channels last.",
        replace=inductor.with_contiguous_arguments,
        is_needed=inductor_probes.reads_indices_out_of_order,
        entry=lambda: torch.ops.aten.adaptive_max_pool3d_backward.default,
        versions=torch_version.before(2, 15),
    ),
    Gate(
        name="CacheBase.get_local_cache_path",
        modules=("torch._inductor.codecache",),
        why="The file with the times of choices that were measured is one for each GPU, and for all other devices.",
        replace=inductor.times_of_the_device,
        is_needed=inductor_probes.file_of_times_is_of_no_device,
    ),
    Gate(
        name="AOTAutogradCacheDetails.__init__",
        modules=("torch._functorch._aot_autograd.autograd_cache",),
        why="Where two inputs are views of one storage and one is written, their offsets are constants in the code, "
        "but not in the key of the cache: code for other offsets is found, which gives wrong results.",
        replace=inductor.views_in_the_key,
        is_needed=inductor_probes.forgets_where_views_are,
    ),
    Gate(
        name="fx_graph_cse",
        modules=("torch._functorch.compile_utils", "torch._functorch.partitioners", "torch._inductor.freezing"),
        why="Of two equal operators with several results one is dropped, even if results of both are returned: they "
        "share memory then, and a backward writes over what the user has, as it takes it for its own copy.",
        replace=inductor.results_apart,
        is_needed=probes.merges_returned_results,
    ),
    Gate(
        name="inplaceable_ops",
        modules=("torch._inductor.fx_passes.reinplace",),
        why="A tensor that is put into itself is written to while it is still read: x.index_put((i,), x).",
        replace=inductor.nothing_into_itself,
        is_needed=probes.puts_into_itself,
        versions=torch_version.before(2, 15),
    ),
    Gate(
        name="check_nan",
        modules=("torch._inductor.codegen.common",),
        why="runtime_triton_nan_asserts checks what lies beyond a tensor's end too, where log(0) is no error.",
        replace=inductor.check_nan_within_mask,
        is_needed=inductor_probes.checks_beyond_the_end,
    ),
    Gate(
        name="TritonOverrides.floordiv",
        modules=("torch._inductor.codegen.triton",),
        why="Quotients of narrow integers are int32 in the code: what follows does not wrap around, which gives wrong "
        "results, and reductions in loops do not compile. And those of the least number by a negative one are wrong.",
        replace=inductor.quotients_of_their_type,
        is_needed=inductor_probes.quotients_are_wider,
    ),
    Gate(
        name="CachingAutotuner._create_compile_options",
        modules=("torch._inductor.runtime.triton_heuristics",),
        why="Conversions to fp8 in compiled code give what operators give, also of what is too large: infinity for "
        "e5m2. Kernels of Triton saturate, and so do the program's own.",
        replace=inductor.converting_as_eager,
        is_needed=inductor_probes.saturates_fp8,
    ),
    device_lists.device_list(
        "_is_valid_woq_optimization_pattern",
        "torch._inductor.fx_passes.quantization",
        "A product with a converted int8 weight, scaled, becomes one operator on devices that it lists.",
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
        is_needed=inductor_probes.leaves_workers_without,
    ),
    Gate(
        name="is_big_gpu",
        modules=("torch._inductor.utils",),
        why="Inductor has GEMM templates for devices of 68 processors or more; mtia has as many as its host has cores.",
        replace=inductor.is_big_device,
        is_needed=inductor_probes.has_no_templates_on_few_processors,
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
        why="It asserts that a process has one kind of GPU, so that with this device beside it code for another one "
        "cannot be compiled.",
        replace=inductor.the_other_gpu,
        is_needed=inductor_probes.refuses_a_second_gpu,
    ),
    Gate(
        name="_visible_device_env_var_maps",
        modules=("torch._inductor.autotune_process",),
        why="A process that measures choices ends at once if no variable is known that hides devices of its kind. "
        "Nothing reads that of mtia: its devices are identified by index.",
        replace=lambda variables: variables | {device_type(): f"{device_type().upper()}_VISIBLE_DEVICES"},
        is_needed=lambda variables: device_type() not in variables,
        by_name=True,
        versions=torch_version.since(2, 14),
    ),
    Gate(
        name="get_max_num_sms",
        modules=("torch._inductor.utils",),
        why="It asks torch.cuda for the number of processors whatever the device.",
        replace=inductor.number_of_processors,
        is_needed=inductor_probes.counts_no_processors,
    ),
    Gate(
        name="DebugFormatter.log_autotuning_results",
        modules=("torch._inductor.debug",),
        why="The log of autotuning names torch.cuda's device, and raises where there is none.",
        replace=inductor.log_of_mtia,
        is_needed=inductor_probes.logs_another_device,
    ),
    Gate(
        name="_select_conv_backend",
        modules=("torch._C",),
        why="Says how the result of a convolution lies, for compiled code, which asserts it. Convolutions of mtia are "
        "the CPU's.",
        replace=inductor.convolution_of_cpu,
        is_needed=functools.partial(probes.lays_out_convolutions_otherwise, "_select_conv_backend", batch=2),
    ),
    Gate(
        name="_conv_determine_backend_memory_format",
        modules=("torch._C",),
        why="Says it beside it: of a batch of one, that only the CPU's keep channels last.",
        replace=inductor.convolution_of_cpu,
        is_needed=functools.partial(
            probes.lays_out_convolutions_otherwise, "_conv_determine_backend_memory_format", batch=1
        ),
    ),
    Gate(
        name="get_split_k",
        modules=("torch._inductor.kernel.flex.flex_decoding",),
        why="FlexAttention for few queries divides the keys by the number of processors of torch.cuda's device.",
        replace=inductor.split_keys,
        is_needed=inductor_probes.splits_for_no_device,
    ),
    Gate(
        name="needs_fallback_due_to_atomic_add_limitations",
        modules=("torch._inductor.utils", "torch._inductor.lowering"),
        why="It says for a GPU where atomic additions are slow: x86 has none of floating-point numbers.",
        replace=inductor.atomic_additions_are_slow,
        is_needed=inductor_probes.adds_atomically,
    ),
    Gate(
        name="fallback_node_due_to_unsupported_type",
        modules=("torch._inductor.lowering", "torch._inductor.graph"),
        why="Operators are inlined into one kernel without a limit on its buffers; this decides about each of them.",
        replace=inductor.keeps_to_buffer_limit,
        is_needed=inductor_probes.knows_no_limit_on_buffers,
    ),
    *(
        Gate(
            name=name,
            modules=("torch._inductor.runtime.triton_heuristics",),
            why="Block sizes are listed for GPUs, and depend on which GPU the process has, not on the kernel's device.",
            replace=functools.partial(inductor.block_sizes, of),
            is_needed=functools.partial(inductor_probes.tries_several_sizes, of),
        )
        for name, of in (
            ("pointwise", "pointwise"),
            ("_reduction_configs", "reduction"),
            ("_persistent_reduction_configs", "persistent_reduction"),
        )
    ),
    device_lists.device_list(
        "tuned_mm.__wrapped__",
        "torch._inductor.kernel.mm",
        "mm(out_dtype=...) is refused for devices not listed.",
    ),
    device_lists.device_list(
        "tuned_bmm.__wrapped__",
        "torch._inductor.kernel.bmm",
        "bmm(out_dtype=...) is refused for devices not listed.",
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
        is_needed=inductor_probes.records_no_graph,
    ),
    Gate(
        name="maybe_handle_backward_generation",
        modules=("torch._inductor.output_code",),
        why="A backward that is not recorded looks for the CUDA graphs of its forward, and asserts there are some.",
        replace=graphs.backward_without_trees,
        is_needed=inductor_probes.backward_needs_trees,
    ),
    Gate(
        name="DEVICE_TO_ATEN",
        modules=("torch._inductor.codegen.cpp_utils", "torch._inductor.codegen.cpp_wrapper_cpu"),
        why="C++ code is generated for listed devices.",
        replace=packages.named_in_cpp,
        is_needed=lambda original: device_type() not in original,
        versions=torch_version.before(2, 15),  # from then on DeviceOpOverrides says it
        by_name=True,
    ),
    Gate(
        name="CachingAutotuner.save_gpu_kernel",
        modules=("torch._inductor.runtime.triton_heuristics",),
        why="The compiled kernel that goes into a package is looked for under the names of other devices.",
        replace=packages.image_of_mtia,
        is_needed=inductor_probes.finds_no_image,
    ),
    Gate(
        name="DeferredTritonCallWrapper._get_cpp_param_type",
        modules=("torch._inductor.codegen.cpp_wrapper_gpu",),
        why="A number that a kernel takes as float64 is cut to float32 on its way, or to an integer.",
        replace=packages.numbers_in_full,
        is_needed=inductor_probes.cuts_numbers,
    ),
    Gate(
        name="get_cpp_torch_device_options",
        modules=("torch._inductor.cpp_builder",),
        why="Generated C++ is compiled with the headers and libraries of listed devices.",
        replace=packages.built_for_mtia,
        is_needed=inductor_probes.links_no_device,
    ),
    Gate(
        name="get_cpp_wrapper_config",
        modules=("torch._inductor.compile_fx",),
        why="With cpp_wrapper, kernels are compiled at the first call, by a header that includes CUDA's.",
        replace=packages.kernels_with_the_code,
        is_needed=inductor_probes.compiles_kernels_at_the_first_call,
    ),
    device_lists.device_list(
        "GraphLowering.codegen_with_cpp_wrapper",
        "torch._inductor.graph",
        "Kernels of a package are tuned before it is written on listed devices only.",
        torch_version.before(2, 15),  # from then on DeviceOpOverrides says it
    ),
    device_lists.device_list(
        "_is_gpu_triton_backend",
        "torch._inductor.scheduler",
        "Reductions over different dimensions of one tensor are fused on listed devices only.",
    ),
    Gate(
        name="prepare_softmax_extra_check",
        modules=("torch._inductor.fx_passes.post_grad",),
        why="A softmax over rows that are too long to be kept reads them twice, not three times, on listed devices.",
        replace=fusion.online_softmax,
        is_needed=inductor_probes.reads_rows_three_times,
    ),
    Gate(
        name="check_device",
        modules=("torch._inductor.fx_passes.pad_mm",),
        why="Operands of products are padded, where force_shape_pad asks for it, on listed devices.",
        replace=fusion.padded_where_asked_for,
        is_needed=inductor_probes.never_pads,
    ),
    device_lists.device_list(
        "use_native_matmul",
        "torch._inductor.kernel.mm_common",
        "Products are generated as reductions, where native_matmul asks for it, on listed devices.",
    ),
    Gate(
        name="lowerings[addmm]",
        modules=("torch._inductor.lowering",),
        why="With max_autotune, a bias of no dimension is an IndexError, and one of NaN is added although beta=0.",
        replace=fusion.addmm_of_every_bias,
        is_needed=inductor_probes.adds_what_beta_leaves_out,
        entry=lambda: torch.ops.aten.addmm.default,
        filled_by="torch._inductor.kernel.mm",
    ),
    Gate(
        name="lowerings[baddbmm]",
        modules=("torch._inductor.lowering",),
        why="So is that of baddbmm.",
        replace=fusion.baddbmm_without_what_is_left_out,
        is_needed=inductor_probes.adds_what_beta_leaves_out_of_batches,
        entry=lambda: torch.ops.aten.baddbmm.default,
        filled_by="torch._inductor.kernel.bmm",
    ),
    *(
        Gate(
            name=f"lowerings[{name}.dtype]",
            modules=("torch._inductor.lowering",),
            why="With native_matmul, the result has the dtype of the operands and not the one that was asked for.",
            replace=fusion.generated_but_for_other_dtypes,
            is_needed=functools.partial(inductor_probes.generates_no_other_dtype, getattr(torch, name)),
            entry=functools.partial(getattr, getattr(torch.ops.aten, name), "dtype"),
            filled_by=f"torch._inductor.kernel.{name}",
        )
        for name in ("mm", "bmm")
    ),
    Gate(
        name="lowerings[addmm.dtype]",
        modules=("torch._inductor.lowering",),
        why="The lowering of addmm is taken for the one with out_dtype as well, and has no such argument.",
        replace=fusion.addmm_with_out_dtype,
        is_needed=functools.partial(inductor_probes.has_no_out_dtype, torch.addmm),
        entry=lambda: torch.ops.aten.addmm.dtype,
        filled_by="torch._inductor.kernel.mm",
    ),
    Gate(
        name="lowerings[baddbmm.dtype]",
        modules=("torch._inductor.lowering",),
        why="And that of baddbmm.",
        replace=fusion.baddbmm_with_out_dtype,
        is_needed=functools.partial(inductor_probes.has_no_out_dtype, torch.baddbmm),
        entry=lambda: torch.ops.aten.baddbmm.dtype,
        filled_by="torch._inductor.kernel.bmm",
    ),
    device_lists.named_instead(
        "is_b2b_gemm_good_on",
        "torch._inductor.fx_passes.b2b_gemm",
        "Two products in a row become one kernel, where b2b_gemm_pass asks for it, on listed devices.",
        {"is_cuda": lambda: f"is_{device_type()}"},
    ),
    Gate(
        name="AlgorithmSelectorCache.benchmark_choices",
        modules=("torch._inductor.select_algorithm",),
        why="Choices are measured one after the other, and the shortest time wins, by however little: on a processor "
        "that others use as well, and beside operators that are as quick as their templates, that is chance.",
        replace=autotuning.measured_in_turns,
        is_needed=inductor_probes.measures_once,
    ),
    Gate(
        name="AlgorithmSelectorCache.benchmark_in_sub_process",
        modules=("torch._inductor.select_algorithm",),
        why="So they are in another process, which makes up the blocks of FlexAttention's masks too: a kernel that "
        "finds none has nothing to do.",
        replace=autotuning.measured_in_turns_elsewhere,
        is_needed=lambda measure: (
            inductor_probes.measures_once_elsewhere(measure) or inductor_probes.makes_up_operands_elsewhere(measure)
        ),
    ),
    Gate(
        name="AsyncAutotuner.get_results",
        modules=("torch._inductor.autotune_process",),
        why="And with pipeline_max_autotune_gemm.",
        replace=autotuning.measured_in_turns_in_the_pipeline,
        is_needed=inductor_probes.measures_once_in_the_pipeline,
    ),
    Gate(
        name="AsyncAutotuner.start",
        modules=("torch._inductor.autotune_process",),
        why="With pipeline_max_autotune_gemm, another process measures while this one compiles, on the same cores.",
        replace=autotuning.measured_while_nothing_is_compiled,
        is_needed=inductor_probes.measures_at_once,
    ),
    Gate(
        name="Benchmarker.benchmark_gpu_with_cuda_graph",
        modules=("torch._inductor.runtime.benchmarking",),
        why="Operators of one's own are measured in CUDA graphs, where benchmark_with_cudagraphs asks for it.",
        replace=autotuning.replayed_from_a_graph,
        is_needed=lambda measure: probes.raises(measure, None, lambda: None),
    ),
)
