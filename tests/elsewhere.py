"""Calls of what the gates replace that concern another device, or none: the replacement leaves them to the original.

CALLS has, by the name of a row, the arguments of such a call. Tensors of CUDA are fake ones. A row that is in neither
table fails a test: say in CALLS how it is called for another device, or in SAME why it makes no difference to one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = torch.device("cuda", 0)
ANSWER = 12345.5
"""What the stand-in for an original returns, unless RETURNS has another value."""

SAME = {
    "CompiledKernel._init_handles": "what it adds after the original refuses the device's tensors",
    "Autotuner._bench": "asks whose driver Triton's is",
    "Autotuner.prune_configs": "sets an attribute, which nothing else reads",
    "AOTAutogradCacheDetails.__init__": "what it adds after the original are places of the device's tensors",
    "GuardBuilder.GLOBAL_STATE": "adds a guard to the original's, for the device's tensors: see test_numerics",
    "ProcessGroup._get_sequence_number_for_group": "asks the group for the device's backend",
    "Int4TilePackedTo4dTensor.from_hp": "of torchao, which is not installed everywhere",
    "_check_hardware_support": "of torchao, which is not installed everywhere",
    "_get_capturable_supported_devices": "adds the device to the list that the original returns",
    "torch": "what torch.nn.parallel.comm sees, whose copies are tested by name",
    "_new_process_group_helper": "names the backend where nobody has, if the device is the accelerator",
    "_set_pg_timeout": "asks the group for the device's backend",
    "TritonHOPifier.recreate_variable": "keeps what upstream forgets of a kernel; Dynamo does not know its device yet",
    "compile_fx": "calls the original, in a mode of torch_mtia.numerics with options for the whole graph",
    "cudagraphify": "decides at the first call, by the inputs",
    "decomposition_table[baddbmm.dtype]": "registers a kernel: see test_compile_features",
    "fx_graph_cse": "what it changes around the original is of the device's tensors",
    "get_current_stream": "a builtin function that does what upstream's does",
    "get_gpu_type": "answers as without the device where there is another one",
    "inductor_choices_class": "a setting that is None; each choice asks for the device",
    "monitored_barrier": "asks the group for the device's backend",
    "select_decomp_table": "what it adds to the rules of the original asks for the device of their tensors",
    "profile._parse_kineto_results": "what it adds after the original are the device's events",
    "store_user_object_weakrefs": "a builtin function that does what upstream's does",
}


class _Choice:
    """Of autotuning."""

    layout = SimpleNamespace(device=CUDA)
    bmreq = None


CHOICE = _Choice()
RETURNS: dict[str, Any] = {
    "AsyncAutotuner.get_results": {CHOICE: 1.0},
    "_is_gpu_triton_backend": False,
    "python_subprocess_env": {},
    "check_device": False,
    "use_native_matmul": False,
    "fallback_node_due_to_unsupported_type": False,
    "get_cpp_wrapper_config": {},
    "needs_fallback_due_to_atomic_add_limitations": False,
}


def calls() -> dict[str, tuple[Any, ...] | dict[str, Any]]:
    """By position, or by name. Each is for a process whose accelerator is CUDA, and that lowers a graph on it."""
    with FakeTensorMode():
        x, mask, index = (
            torch.empty(2, 2, dtype=dtype, device=CUDA) for dtype in (torch.float32, torch.bool, torch.int64)
        )
    here = torch.ones(2, 2)
    buffer = SimpleNamespace(get_device=lambda: CUDA, get_size=list)
    operator: Any = SimpleNamespace(is_gpu=lambda: True, get_device=lambda: CUDA)
    match = SimpleNamespace(kwargs={"x": SimpleNamespace(meta={"val": x})})
    collective = SimpleNamespace(name="ALL_REDUCE")
    node = torch.fx.Graph().call_function(torch.ops.aten.native_layer_norm.default)
    node.meta["val"] = (x, x, x)
    tensors = SimpleNamespace(output_tensor=x, unpack=lambda: ((), x))
    arguments = SimpleNamespace(get_benchmark_tensors=lambda _: tensors)
    selector: Any = SimpleNamespace(_is_extern=lambda _: True)
    meta = {"device": SimpleNamespace(type="cuda")}
    rand = torch.ops.aten.rand.default
    found: dict[str, tuple[Any, ...] | dict[str, Any]] = {
        "AlgorithmSelectorCache.__call__": (selector, "name", [CHOICE], [], CHOICE.layout, None),
        "AlgorithmSelectorCache.benchmark_choices": (selector, [CHOICE], arguments),
        "AlgorithmSelectorCache.benchmark_collective_choice": (selector, CHOICE, arguments),
        "AlgorithmSelectorCache.benchmark_in_sub_process": (selector, [CHOICE], [], CHOICE.layout, None, None),
        "AsyncAutotuner.get_results": (selector, [CHOICE], "key"),
        "AsyncAutotuner.start": (selector, [CHOICE], "key"),
        "Benchmarker.benchmark_gpu_with_cuda_graph": (None, lambda: None),
        "CacheBase.get_local_cache_path": (),
        "DebugFormatter.log_autotuning_results": (None, "mm", [buffer], {}),
        "DefaultStager.stage": (SimpleNamespace(_staging_stream=object()), {}),
        "DistributedDataParallel._check_comm_hook": (SimpleNamespace(device_type="cuda"), lambda: None),
        "StateDictStager.__init__": (SimpleNamespace(), True, False),
        "GraphLowering.codegen_with_cpp_wrapper": (SimpleNamespace(device_types={"cuda"}),),
        "SyncBatchNorm.forward": (None, x),
        "Tensor.__deepcopy__": (here, {}),
        "Tensor._reduce_ex_internal": (here, 2),
        "Tensor.new": (here, 3),
        "TuningProcessPool.benchmark": (selector, [CHOICE]),
        "_SymmetricMemory.get_buffer": (SimpleNamespace(device=CUDA), 0, [1], torch.float32),
        "_SymmetricMemory.get_signal_pad": (SimpleNamespace(device=CUDA), 0),
        "_AllGatherBase.backward": (None, x),
        "_benchmark_collective_with_cuda_events_impl": (None, (x,), {}, 1),
        "_conv_determine_backend_memory_format": (x, x),
        "_is_gpu_triton_backend": (operator, operator),
        "_select_conv_backend": (x, x),
        "_str_intern": (here,),
        "_validate_device": (x, x, x),
        "cached_autotune": (None, [], meta, None),
        "check_multiple_devices_or_any_cpu_nodes": ({CUDA: None},),
        "check_device": (x, x),
        "check_nan": (None, None),
        "compute_min_saturation_bytes": (8, collective, 0.9),
        "decompositions[index_add]": (x, 0, index, x),
        "decompositions[masked_fill]": (x, mask, torch.tensor(2.0)),
        "estimate_nccl_collective_runtime_impl": (1 << 20, 8, collective),
        "fallback_node_due_to_unsupported_type": (node, True),
        "lowerings[bmm.dtype]": (x, x, torch.float32),
        "get_cpp_torch_device_options": ("cuda",),
        "get_cpp_wrapper_config": (),
        "get_device_dram_gbps": (CUDA,),
        "get_device_tflops": (torch.float32,),
        "get_gpu_dram_gbps": (),
        "get_max_num_sms": (),
        "get_split_k": (1, 1, 1024),
        "get_symm_mem_workspace": ("group", 1),
        "hash_storage": (here.untyped_storage(),),
        "is_big_gpu": (CUDA,),
        "jagged_scaled_dot_product_attention": (x, x, x),
        "maybe_handle_backward_generation": (SimpleNamespace(device_types={"cuda"}), None),
        "needs_fallback_due_to_atomic_add_limitations": (torch.float32,),
        "prepare_softmax_extra_check": (match,),
        "python_subprocess_env": (),
        "run_and_save_rng_state.__class__.__call__": (None, rand, [2], x),
        "run_with_rng_state.__class__.__call__": (None, here, rand, [2], x),
        "flop_registry[baddbmm]": (x, x, x, torch.float32),
        "is_b2b_gemm_good_on": (True, *[SimpleNamespace(meta={"val": x})] * 3),
        "use_native_matmul": (buffer, buffer),
    }
    return found
