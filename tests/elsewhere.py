"""Calls of what the gates replace that concern another device, or none: the replacement leaves them to the original.

CALLS has, by the name of a row, the arguments of such a call. Tensors of CUDA are fake ones. A row that is in neither
table fails a test: say in CALLS how it is called for another device, or in SAME why it makes no difference to one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_mtia.upstream_gates import parallel

CUDA = torch.device("cuda", 0)
ANSWER = 12345.5
"""What the stand-in for an original returns, unless RETURNS has another value."""

SAME = {
    "AOTAutogradCacheDetails.__init__": "what it adds after the original are places of the device's tensors",
    "CachingAutotuner.run": "a builtin function that does what upstream's does, for launchers of every device",
    "CompiledKernel._init_handles": "what it adds after the original refuses the device's tensors",
    "ProcessGroup._get_sequence_number_for_group": "asks the group for the device's backend",
    "Int4TilePackedTo4dTensor.from_hp": "of torchao, which is not installed everywhere",
    "_check_hardware_support": "of torchao, which is not installed everywhere",
    "_compute_keyset": "takes the device's own key away after the original",
    "_empty_strided_mtia": "the device's own function",
    "_new_process_group_helper": "names the backend where nobody has, if the device is the accelerator",
    "_set_pg_timeout": "asks the group for the device's backend",
    "device.__enter__": "of torch.mtia",
    "memory_stats": "of torch.mtia",
    "set_device": "of torch.mtia",
    "TritonHOPifier.recreate_variable": "keeps what upstream forgets of a kernel; Dynamo does not know its device yet",
    "_SymmetricMemory.get_buffer": "refuses what lies outside the memory; a handle does not tell its device",
    "_SymmetricMemory.get_signal_pad": "refuses what lies outside the memory; a handle does not tell its device",
    "cudagraphify": "decides at the first call, by the inputs",
    "decomposition_table[baddbmm.dtype]": "registers a kernel: see test_compile_features",
    "flex_attention.py_kernels[autocast]": "an entry under the device's own key",
    "fx_graph_cse": "what it changes around the original is of the device's tensors",
    "get_current_stream": "a builtin function that does what upstream's does",
    "get_gpu_type": "answers as without the device where there is another one",
    "inductor_choices_class": "a setting that is None; each choice asks for the device",
    "inplaceable_ops": "a table whose conditions ask for the device",
    "monitored_barrier": "asks the group for the device's backend",
    "profile._parse_kineto_results": "what it adds after the original are the device's events",
    "python_subprocess_env": "worker processes load what their parent has loaded",
    "record_pregraph_bytecode_enter": "a builtin function that does what upstream's does",
    "record_pregraph_bytecode_exit": "a builtin function that does what upstream's does",
    "store_user_object_weakrefs": "a builtin function that does what upstream's does",
}


class _Choice:
    """Of autotuning."""

    layout = SimpleNamespace(device=CUDA)
    bmreq = None


CHOICE = _Choice()
RETURNS: dict[str, Any] = {
    "AsyncAutotuner.get_results": {CHOICE: 1.0},
    "check_device": False,
    "fallback_node_due_to_unsupported_type": False,
    "get_cpp_wrapper_config": {},
    "is_int_mm": False,
    "needs_fallback_due_to_atomic_add_limitations": False,
}


def calls() -> dict[str, tuple[Any, ...] | dict[str, Any]]:
    """By position, or by name. Each is for a process whose accelerator is CUDA, and that lowers a graph on it."""
    with FakeTensorMode():
        x, mask, narrow, index = (
            torch.empty(2, 2, dtype=dtype, device=CUDA)
            for dtype in (torch.float32, torch.bool, torch.int8, torch.int64)
        )
    here = torch.ones(2, 2)
    buffer = SimpleNamespace(get_device=lambda: CUDA, get_size=list)
    number = SimpleNamespace(dtype=torch.int8)
    tuner = SimpleNamespace(device_props=SimpleNamespace(type="cuda"), heuristic_type=None)
    match = SimpleNamespace(kwargs={"x": SimpleNamespace(meta={"val": x})})
    collective = SimpleNamespace(name="ALL_REDUCE")
    node = torch.fx.Graph().call_function(torch.ops.aten.native_layer_norm.default)
    node.meta["val"] = (x, x, x)
    tensors = SimpleNamespace(output_tensor=x, unpack=lambda: ((), x))
    arguments = SimpleNamespace(get_benchmark_tensors=lambda _: tensors)
    selector: Any = SimpleNamespace(_is_extern=lambda _: True)
    sizes, meta = {"x": 64, "r0_": 64}, {"device": SimpleNamespace(type="cuda")}
    launched = SimpleNamespace(metadata=SimpleNamespace(target=SimpleNamespace(backend="cuda")))
    rand = torch.ops.aten.rand.default
    found: dict[str, tuple[Any, ...] | dict[str, Any]] = {
        "AlgorithmSelectorCache.benchmark_choices": (selector, [CHOICE], arguments),
        "AlgorithmSelectorCache.benchmark_collective_choice": (selector, CHOICE, arguments),
        "AlgorithmSelectorCache.benchmark_in_sub_process": (selector, [CHOICE], [], CHOICE.layout, None, None),
        "AsyncAutotuner.get_results": (selector, [CHOICE], "key"),
        "AsyncAutotuner.start": (selector, [CHOICE], "key"),
        "Benchmarker.benchmark_gpu_with_cuda_graph": (None, lambda: None),
        "CacheBase.get_local_cache_path": (),
        "CachingAutotuner._build_fast_launcher": (tuner, None),
        "CachingAutotuner._create_compile_options": (tuner, None, {}),
        "CachingAutotuner.save_gpu_kernel": (tuner, None, SimpleNamespace(bin=SimpleNamespace(asm={}))),
        "CompiledKernel.launch_metadata": (launched, (1,), 0),
        "DebugFormatter.log_autotuning_results": (None, "mm", [buffer], {}),
        "DefaultStager.stage": (SimpleNamespace(_staging_stream=object()), {}),
        "DeferredTritonCallWrapper._get_cpp_param_type": (None, "x", float, {"x": "fp64"}),
        "DistributedDataParallel._check_comm_hook": (SimpleNamespace(device_type="cuda"), lambda: None),
        "ForkingPickler._extra_reducers[UntypedStorage]": (here.untyped_storage(),),
        "StateDictStager.__init__": (SimpleNamespace(), True, False),
        "StateDictStager._stage_untyped_storage": (SimpleNamespace(), here.untyped_storage()),
        "SyncBatchNorm.forward": (None, x),
        "Tensor.__deepcopy__": (here, {}),
        "Tensor._reduce_ex_internal": (here, 2),
        "Tensor.new": (here, 3),
        "Work.__init__": (None,),
        "TritonOverrides.floordiv": (number, number),
        "_conv_determine_backend_memory_format": (x, x),
        "_maybe_layout_constraints[adaptive_max_pool3d_backward]": (None, x),
        "_persistent_reduction_configs": (sizes, None, {}, meta),
        "_reduction_configs": {"size_hints": sizes, "inductor_meta": {}, "triton_meta": meta},
        "_select_conv_backend": (x, x),
        "_str_intern": (here,),
        "check_device": (x, x),
        "check_multiple_devices_or_any_cpu_nodes": ({CUDA: None},),
        "check_nan": (None, None),
        "compute_min_saturation_bytes": (8, collective, 0.9),
        "decompositions[_scaled_mm]": (x, x, x, x, None, x),
        "decompositions[addmm]": (x.sum(), x, x),
        "decompositions[argmax]": (x,),
        "decompositions[argmin]": (x,),
        "decompositions[index_add]": (x, 0, index, x),
        "decompositions[masked_fill]": (x, mask, torch.tensor(2.0)),
        "estimate_nccl_collective_runtime_impl": (1 << 20, 8, collective),
        "fallback_node_due_to_unsupported_type": (node, True),
        "flop_registry[baddbmm]": (x, x, x, torch.float32),
        "get_cpp_torch_device_options": ("cuda",),
        "get_cpp_wrapper_config": (),
        "get_device_dram_gbps": (CUDA,),
        "get_device_tflops": (torch.float32,),
        "get_gpu_dram_gbps": (),
        "get_max_num_sms": (),
        "get_split_k": (1, 1, 1024),
        "hash_storage": (here.untyped_storage(),),
        "is_big_gpu": (CUDA,),
        "is_int_mm": (torch.ops.aten.mm.default, torch.int32, (narrow, narrow)),
        "jagged_scaled_dot_product_attention": (x, x, x),
        "lowerings[addmm.dtype]": (buffer, buffer, buffer, torch.float32),
        "lowerings[addmm]": (buffer, buffer, buffer),
        "lowerings[baddbmm.dtype]": (buffer, buffer, buffer, torch.float32),
        "lowerings[baddbmm]": (buffer, buffer, buffer),
        "lowerings[bmm.dtype]": (buffer, buffer, torch.float32),
        "lowerings[mm.dtype]": (buffer, buffer, torch.float32),
        "maybe_handle_backward_generation": (SimpleNamespace(device_types={"cuda"}), None),
        "needs_fallback_due_to_atomic_add_limitations": (torch.float32,),
        "pointwise": (sizes, meta),
        "prepare_softmax_extra_check": (match,),
        "run_and_save_rng_state.__class__.__call__": (None, rand, [2], x),
        "run_with_rng_state.__class__.__call__": (None, here, rand, [2], x),
    }
    copies: dict[str, Callable[[], tuple[Any, ...]]] = dict.fromkeys(parallel.COPIES, lambda: (x, [0]))
    return found | {name: make() for name, make in copies.items()}
