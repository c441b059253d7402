"""The names in PyTorch and Triton that are replaced, one row each."""

from __future__ import annotations

import torch

from torch_mtia import multiprocessing, torch_version
from torch_mtia.upstream_gates import device_lists
from torch_mtia.upstream_gates.calls_table import CALL_GATES
from torch_mtia.upstream_gates.clients_table import CLIENT_GATES
from torch_mtia.upstream_gates.deferred import (
    eager,
    fusion,
    inductor_probes,
    nested,
    probes,
    quantization,
    random_state,
)
from torch_mtia.upstream_gates.distributed_table import DISTRIBUTED_GATES
from torch_mtia.upstream_gates.gate import Gate
from torch_mtia.upstream_gates.inductor_table import INDUCTOR_GATES
from torch_mtia.upstream_gates.lightning_table import LIGHTNING_GATES

GATES: tuple[Gate, ...] = (
    *CALL_GATES,
    *DISTRIBUTED_GATES,
    *CLIENT_GATES,
    *LIGHTNING_GATES,
    *INDUCTOR_GATES,
    device_lists.device_list(
        "_get_capturable_supported_devices",
        "torch.optim.optimizer",
        "Optimizers with capturable=True assert that their parameters are on one of the devices it lists.",
    ),
    Gate(
        name="profile._parse_kineto_results",
        modules=("torch.autograd.profiler",),
        why="The profiler credits the device's time and memory to operators only for the devices it lists.",
        replace=eager.profile_of_mtia,
        is_needed=probes.credits_nothing,
    ),
    Gate(
        name="Tensor._reduce_ex_internal",
        modules=("torch._tensor",),
        why="Tensors of mtia are pickled as copies on the CPU: memory that they share is lost, what requires a "
        "gradient cannot be loaded, and a file in the old format loads wrong values.",
        replace=eager.pickled_by_storage,
        is_needed=probes.pickles_no_storage,
    ),
    Gate(
        name="Tensor.__deepcopy__",
        modules=("torch._tensor",),
        why="Tensors of mtia are cloned, so that copies of two that share memory no longer do.",
        replace=eager.copied_by_storage,
        is_needed=probes.copies_apart,
    ),
    Gate(
        name="Tensor.new",
        modules=("torch._tensor",),
        why="The legacy constructor, with which SparseAdam makes its updates, knows a list of devices without mtia.",
        replace=eager.new_on_mtia,
        is_needed=probes.makes_no_tensor,
    ),
    device_lists.device_list(
        "norm",
        "torch.functional",
        "torch.norm and Tensor.norm are torch.linalg.vector_norm on devices that they list, elsewhere an operator that "
        "DTensor divides wrongly.",
        in_place_of="xpu",
        of=lambda arguments: arguments["input"],
    ),
    Gate(
        name="_compute_keyset",
        modules=("torch._ops",),
        why="Operators that take functions, Triton kernels of a compiled program among them, fail under autocast of "
        "other devices than those that they list.",
        replace=eager.autocast_as_of_cuda,
        is_needed=probes.stops_at_autocast,
    ),
    Gate(
        name="flex_attention.py_kernels[autocast]",
        modules=("torch._higher_order_ops.flex_attention",),
        why="FlexAttention, which takes functions too, casts its operands under autocast of listed devices.",
        replace=eager.flex_attention_in_short,
        is_needed=lambda original: original is None,
        by_name=True,
        entry=eager.autocast_key,
    ),
    Gate(
        name="ForkingPickler._extra_reducers[UntypedStorage]",
        modules=("multiprocessing.reduction",),
        why="Storages that are sent to another process are shared memory, of CUDA or of the CPU.",
        replace=multiprocessing.sent_by_copy,
        is_needed=probes.sends_no_storage,
        entry=lambda: torch.UntypedStorage,
        filled_by="torch.multiprocessing",
    ),
    Gate(
        name="is_current_stream_capturing",
        modules=("torch.mtia",),
        why="torch.mtia has no counterpart of torch.cuda.is_current_stream_capturing.",
        replace=eager.is_current_stream_capturing,
        is_needed=lambda original: original is None,
        adds=True,
        versions=torch_version.before(2, 15),
    ),
    *(
        Gate(
            name=name,
            modules=("torch.mtia",),
            why="A program that has selected a device has not taken it into use, as it has on CUDA: so the tensors "
            "that FakeTensorMode makes are on the first device, and stay in its cache.",
            replace=replace,
            is_needed=is_needed,
        )
        for name, replace, is_needed in (
            ("set_device", eager.taken_into_use, probes.selects_without_use),
            ("device.__enter__", eager.entered_and_taken_into_use, probes.enters_without_use),
        )
    ),
    Gate(
        name="memory_stats",
        modules=("torch.mtia.memory", "torch.mtia"),
        why="Libraries ask every device for the flat names, such as active_bytes.all.peak; torch.mtia has nested ones.",
        replace=eager.flat_and_nested,
        is_needed=lambda memory_stats: "active_bytes.all.peak" not in memory_stats(),
    ),
    Gate(
        name="get_device_name",
        modules=("torch.mtia",),
        why="torch.mtia has no counterpart of torch.cuda.get_device_name, which libraries log.",
        replace=eager.get_device_name,
        is_needed=lambda original: original is None,
        adds=True,
    ),
    Gate(
        name="CompiledKernel._init_handles",
        modules=("triton.compiler.compiler",),
        why="A driver of Triton takes any address: one for another device would crash on tensors of mtia. And what "
        "could not be loaded would be launched all the same, the second time.",
        replace=eager.refusing_elsewhere,
        is_needed=probes.launches_elsewhere,
    ),
    Gate(
        name="compile.__code__",
        modules=("triton.compiler.compiler",),
        why="With TRITON_STORE_BINARY_ONLY, which Helion's autotuner sets, Triton keeps the binaries of listed "
        "backends alone: kernels of others cannot be loaded.",
        replace=eager.keeping_our_binaries,
        is_needed=eager.drops_our_binaries,
    ),
    Gate(
        name="TritonHOPifier.recreate_variable",
        modules=("torch._higher_order_ops.triton_kernel_wrap",),
        why="An autotuner over @triton.heuristics, or called with num_warps, is replaced in compiled code by one that "
        "forgets restore_value and reset_to_zero: the first call counts every measurement.",
        replace=eager.carrying_over,
        is_needed=probes.forgets_what_to_restore,
    ),
    Gate(
        name="CompiledKernel.launch_metadata",
        modules=("triton.compiler.compiler",),
        why="Every launch gathers what only hooks read, hooks or none: half a microsecond of four.",
        replace=eager.no_metadata_without_hooks,
        is_needed=probes.gathers_without_hooks,
    ),
    Gate(
        name="_empty_strided_mtia",
        modules=("torch._C._dynamo.guards",),
        why="Code that Inductor generates allocates with it, and in wheels without MTIA it only raises.",
        replace=eager.empty_strided_mtia,
        is_needed=eager.is_compiled_out,
    ),
    Gate(
        name="run_and_save_rng_state.__class__.__call__",
        modules=("torch._prims.rng_prims",),
        why="Random operators that the backward runs again, with fallback_random, save their state on listed devices.",
        replace=random_state.saving_of_mtia,
        is_needed=probes.saves_no_state,
    ),
    Gate(
        name="run_with_rng_state.__class__.__call__",
        modules=("torch._prims.rng_prims",),
        why="And run in that state on listed devices.",
        replace=random_state.restoring_of_mtia,
        is_needed=probes.restores_no_state,
    ),
    Gate(
        name="hash_storage",
        modules=("torch.utils._content_store",),
        why="The minifier saves the inputs of a graph under names that it computes on listed devices.",
        replace=eager.hash_on_the_cpu,
        is_needed=probes.hashes_nothing,
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
        is_needed=probes.attends_to_nothing,
    ),
    device_lists.device_list(
        "_validate_device",
        "torch.nn.attention.flex_attention",
        "FlexAttention refuses devices that it does not list.",
    ),
    device_lists.device_list(
        "associative_scan",
        "torch._higher_order_ops.associative_scan",
        "associative_scan in pointwise mode, which becomes one Triton kernel, refuses devices that it does not list.",
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="flop_registry[baddbmm]",
        modules=("torch.utils.flop_counter",),
        why="And its number of operations, which max_autotune asks for.",
        replace=fusion.operations_with_out_dtype,
        is_needed=inductor_probes.counts_out_dtype_as_a_shape,
        versions=torch_version.before(2, 14),
        entry=lambda: torch.ops.aten.baddbmm,
    ),
    Gate(
        name="decomposition_table[baddbmm.dtype]",
        modules=("torch._decomp",),
        why="The decomposition of baddbmm is taken for the one with out_dtype as well, and takes that for beta.",
        replace=fusion.batched_with_out_dtype,
        is_needed=inductor_probes.takes_out_dtype_for_beta,
        entry=lambda: torch.ops.aten.baddbmm.dtype,
        filled_by="torch._meta_registrations",
    ),
    Gate(
        name="is_int_mm",
        modules=("torch._higher_order_ops.out_dtype",),
        why="out_dtype(mm, torch.int32, ...) is a product of int8 on CUDA and XPU, elsewhere one of int32.",
        replace=quantization.integers_on_mtia,
        is_needed=inductor_probes.multiplies_wider_integers,
    ),
    Gate(
        name="_check_hardware_support",
        modules=("torchao.float8.inference", "torchao.quantization.quant_api"),
        why="Products of two fp8 tensors are refused without a CUDA device that has them, or an XPU.",
        replace=quantization.scaled_products_on_mtia,
        is_needed=inductor_probes.refuses_fp8,
    ),
    Gate(
        name="Int4TilePackedTo4dTensor.from_hp",
        modules=("torchao.quantization.quantize_.workflows.int4.int4_tile_packed_to_4d_tensor",),
        why="Weights of 4 bits are packed if torch.cuda's device has tensor cores.",
        replace=quantization.packed_on_mtia,
        is_needed=inductor_probes.packs_no_4_bits,
    ),
)
