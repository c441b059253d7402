"""Whether upstream still needs each row of torch_mtia.upstream_gates.

A check takes what is in a row's place, and is true as long as that does not do for the device what the row is for. It
asks for behaviour, not for who wrote the function: what upstream will write is as welcome as our replacement. A row
that is not in CHECKS is a list of devices, which lacks the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

import torch

from tests.gate_checks import clients, core, distributed, inductor
from torch_mtia import higher_order
from torch_mtia.backend import device_type
from torch_mtia.upstream_gates import Gate

Check = Callable[[Any], bool]


def is_needed(gate: Gate) -> Check:
    """Returns the check of a row."""
    return CHECKS.get(f"{gate.modules[0]}:{gate.name}") or CHECKS.get(gate.name) or lacks_the_device


def lacks_the_device(value: Any) -> bool:
    """Whether a list, or the code of a function, does not name it."""
    parts = (*value.co_consts, *value.co_names) if isinstance(value, CodeType) else value
    if isinstance(parts, tuple | frozenset | list | dict):
        return all(map(lacks_the_device, parts))
    return bool(parts != device_type())


def is_none(value: Any) -> bool:
    return value is None


def measures_elsewhere(measure: Any) -> bool:
    return inductor.measures_once_elsewhere(measure) or inductor.makes_up_operands_elsewhere(measure)


CHECKS: dict[str, Check] = {
    "AOTAutogradCacheDetails.__init__": inductor.forgets_where_views_are,
    "Accelerator.__init__": clients.makes_no_accelerator,
    "AlgorithmSelectorCache.__call__": inductor.leaves_to_the_pipeline_what_lowering_needs,
    "AlgorithmSelectorCache.benchmark_choices": inductor.measures_once,
    "AlgorithmSelectorCache.benchmark_collective_choice": distributed.times_no_collective,
    "AlgorithmSelectorCache.benchmark_in_sub_process": measures_elsewhere,
    "AsyncAutotuner.get_results": inductor.measures_once_in_the_pipeline,
    "AsyncAutotuner.start": inductor.measures_at_once,
    "Autotuner._bench": partial(core.measures_the_same_code_again, "_bench"),
    "Autotuner.prune_configs": partial(core.measures_the_same_code_again, "prune_configs"),
    "Benchmarker.benchmark_gpu_with_cuda_graph": lambda measure: core.raises(measure, None, lambda: None),
    "CacheBase.get_local_cache_path": inductor.file_of_times_is_of_no_device,
    "CompiledKernel._init_handles": core.launches_what_did_not_load,
    "DDPStrategy._determine_ddp_device_ids": clients.numbers_devices,
    "DDPStrategy.determine_ddp_device_ids": clients.numbers_devices,
    "DISTRIBUTED_BACKEND_MAP": clients.has_no_backend,
    "DebugFormatter.log_autotuning_results": inductor.logs_another_device,
    "DefaultStager.stage": distributed.stages_at_once,
    "DeviceRepos.create_repo": clients.maps_no_layers,
    "DistributedDataParallel._check_comm_hook": distributed.refuses_compression,
    "GraphLowering.codegen_with_cpp_wrapper": inductor.tunes_at_the_first_call,
    "Int4TilePackedTo4dTensor.from_hp": inductor.packs_no_4_bits,
    "Module._apply": core.parts_what_is_shared,
    "PartialState._prepare_backend": clients.trains_alone,
    "PartialState.default_device": clients.defaults_to_the_cpu,
    "PartialState.wait_for_everyone": clients.waits_by_a_number,
    "Pipeline.__init__": clients.moves_the_model_away,
    "ProcessGroup._get_sequence_number_for_group": distributed.has_no_sequence_number,
    "StateDictStager.__init__": distributed.pins_nothing,
    "SyncBatchNorm.forward": distributed.synchronizes_no_batch_norm,
    "Tensor.__deepcopy__": core.copies_apart,
    "Tensor._reduce_ex_internal": core.pickles_no_storage,
    "Tensor.new": core.makes_no_tensor,
    "Trainer._load_rng_state": clients.trainer_loads_no_random_states,
    "Trainer._save_rng_state": clients.trainer_saves_no_random_states,
    "TrainingArguments._setup_devices": clients.trains_on_the_cpu,
    "TransformerEncoder.forward": core.makes_strided_nested_tensors,
    "TritonHOPifier.recreate_variable": core.forgets_what_to_restore,
    "TuningProcessPool.benchmark": inductor.forgets_the_limit,
    "_AcceleratorConnector._check_and_init_precision": clients.casts_elsewhere,
    "_AcceleratorConnector._choose_auto_accelerator": clients.answers_cpu,
    "_AcceleratorConnector._choose_strategy": clients.puts_it_on_the_cpu,
    "_AllGatherBase.backward": distributed.has_no_gradient,
    "_Connector._check_and_init_precision": clients.casts_elsewhere,
    "_Connector._choose_auto_accelerator": clients.answers_cpu,
    "_Connector._choose_strategy": clients.puts_it_on_the_cpu,
    "_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS": lambda keys: higher_order.autocast_key() not in keys,
    "_SymmetricMemory.get_buffer": distributed.accepts_any_offset,
    "_SymmetricMemory.get_signal_pad": distributed.accepts_any_offset,
    "_benchmark_collective_with_cuda_events_impl": distributed.times_no_collective_of_a_graph,
    "_check_hardware_support": inductor.refuses_fp8,
    "_conv_determine_backend_memory_format": partial(
        core.lays_out_convolutions_otherwise, "_conv_determine_backend_memory_format", batch=1
    ),
    "_get_capturable_supported_devices": lambda devices: lacks_the_device(devices()),
    "_get_cpp_wrapper_header": lambda header: device_type() in header(device_type()),
    "_is_gpu_triton_backend": inductor.fuses_no_reductions,
    "_move_states_to_device": core.moves_no_parameter,
    "_new_process_group_helper": distributed.has_no_default_backend,
    "_select_conv_backend": partial(core.lays_out_convolutions_otherwise, "_select_conv_backend", batch=2),
    "_set_pg_timeout": distributed.sets_no_timeout,
    "_str_intern": core.prints_no_functional_tensor,
    "_validate_device_type": clients.validates_no_device,
    "_validate_device": core.refuses_flex_attention,
    "_validate_launch_command": clients.launches_one_process,
    "cached_autotune": inductor.knows_one_autotuner,
    "check_device": inductor.never_pads,
    "compile_fx": inductor.compiles_in_no_mode,
    "check_multiple_devices_or_any_cpu_nodes": lambda check: check({torch.device("mtia", 0): None}) is not None,
    "check_nan": inductor.checks_beyond_the_end,
    "compile.__code__": core.drops_our_binaries,
    "compute_min_saturation_bytes": distributed.buckets_for_another_latency,
    "cudagraphify": inductor.records_no_graph,
    "custom_ops": lambda operators: not any("overrideable" in str(operator) for operator in operators),
    "decomposition_table[baddbmm.dtype]": inductor.takes_out_dtype_for_beta,
    "decompositions[index_add]": inductor.divides_index_add,
    "decompositions[masked_fill]": inductor.fills_with_no_scalar,
    "decompositions[native_layer_norm]": core.divides_layer_norm,
    "estimate_nccl_collective_runtime_impl": distributed.exceeds_memory,
    "fallback_node_due_to_unsupported_type": inductor.knows_no_limit_on_buffers,
    "fx_graph_cse": core.merges_returned_results,
    "flop_registry[baddbmm]": inductor.counts_out_dtype_as_a_shape,
    "lowerings[bmm.dtype]": inductor.refuses_out_dtype,
    "GuardBuilder.GLOBAL_STATE": inductor.guards_on_no_mode,
    "get_cpp_torch_device_options": inductor.links_no_device,
    "get_cpp_wrapper_config": inductor.compiles_kernels_at_the_first_call,
    "get_current_stream": inductor.asks_for_streams_in_python,
    "get_device_dram_gbps": distributed.has_no_bandwidth,
    "get_device_tflops": distributed.has_no_products,
    "get_gpu_dram_gbps": distributed.has_no_bandwidth,
    "get_gpu_type": inductor.refuses_a_second_gpu,
    "get_grad_scaler": clients.scales_nothing,
    "get_max_memory": clients.finds_no_memory,
    "get_max_num_sms": inductor.counts_no_processors,
    "get_split_k": inductor.splits_for_no_device,
    "get_symm_mem_workspace": distributed.has_no_workspace,
    "hash_storage": core.hashes_nothing,
    "inductor_choices_class": is_none,
    "infer_device": clients.answers_cpu,
    "is_b2b_gemm_good_on": inductor.multiplies_one_after_the_other,
    "is_big_gpu": inductor.has_no_templates_on_few_processors,
    "is_current_stream_capturing": is_none,
    "is_torch_bf16_gpu_available": lambda is_available: not is_available(),
    "jagged_scaled_dot_product_attention": core.attends_to_nothing,
    "maybe_handle_backward_generation": inductor.backward_needs_trees,
    "monitored_barrier": distributed.monitors_no_barrier,
    "needs_fallback_due_to_atomic_add_limitations": inductor.adds_atomically,
    "prepare_softmax_extra_check": inductor.reads_rows_three_times,
    "profile._parse_kineto_results": core.credits_nothing,
    "python_subprocess_env": inductor.leaves_workers_without,
    "run_and_save_rng_state.__class__.__call__": core.saves_no_state,
    "run_with_rng_state.__class__.__call__": core.restores_no_state,
    "safe_open": clients.opens_nothing,
    "select_decomp_table": inductor.divides_softmax,
    "sentence_transformers.util.environment:get_device_name": clients.answers_cpu,
    "store_user_object_weakrefs": inductor.keeps_streams_in_python,
    "torch.mtia:get_device_name": is_none,
    "torch_geometric.device:device": lambda device: clients.answers_cpu(lambda: device("auto")),
    "torch.nn.parallel.comm:torch": distributed.copies_nothing,
    "use_native_matmul": inductor.generates_no_products,
    "write_basic_config": clients.writes_the_cpu,
}
