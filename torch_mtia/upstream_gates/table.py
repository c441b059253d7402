"""The names in PyTorch and Triton that are replaced, one row each."""

from __future__ import annotations

import torch

from torch_mtia import torch_version
from torch_mtia.upstream_gates import device_lists
from torch_mtia.upstream_gates.calls_table import CALL_GATES
from torch_mtia.upstream_gates.clients_table import CLIENT_GATES
from torch_mtia.upstream_gates.deferred import (
    eager,
    fusion,
    nested,
    quantization,
    random_state,
)
from torch_mtia.upstream_gates.distributed_table import DISTRIBUTED_GATES
from torch_mtia.upstream_gates.gate import Gate, Reason
from torch_mtia.upstream_gates.inductor_table import INDUCTOR_GATES
from torch_mtia.upstream_gates.lightning_table import LIGHTNING_GATES

GATES: tuple[Gate, ...] = (
    *CALL_GATES,
    *DISTRIBUTED_GATES,
    *CLIENT_GATES,
    *LIGHTNING_GATES,
    *INDUCTOR_GATES,
    Gate(
        name="_get_capturable_supported_devices",
        modules=(
            "torch.optim.optimizer",
            *(
                f"torch.optim.{name}"
                for name in ("adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop")
            ),
        ),
        reason=Reason.DEVICES,
        why="Optimizers with capturable=True assert that their parameters are on one of the devices it lists.",
        replace=eager.capturable_on_mtia,
    ),
    Gate(
        name="profile._parse_kineto_results",
        modules=("torch.autograd.profiler",),
        reason=Reason.DEVICES,
        why="The profiler credits the device's time and memory to operators only for the devices it lists.",
        replace=eager.profile_of_mtia,
    ),
    Gate(
        name="Tensor._reduce_ex_internal",
        modules=("torch._tensor",),
        reason=Reason.DEVICE,
        why="Tensors of mtia are pickled as copies on the CPU: memory that they share is lost, what requires a "
        "gradient cannot be loaded, and a file in the old format loads wrong values.",
        replace=eager.pickled_by_storage,
    ),
    Gate(
        name="Tensor.__deepcopy__",
        modules=("torch._tensor",),
        reason=Reason.DEVICE,
        why="Tensors of mtia are cloned, so that copies of two that share memory no longer do.",
        replace=eager.copied_by_storage,
    ),
    Gate(
        name="Tensor.new",
        modules=("torch._tensor",),
        reason=Reason.DEVICES,
        why="The legacy constructor, with which SparseAdam makes its updates, knows a list of devices without mtia.",
        replace=eager.new_on_mtia,
    ),
    Gate(
        name="_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS",
        modules=("torch._ops",),
        reason=Reason.DEVICES,
        why="Operators that take functions, Triton kernels of a compiled program among them, pass autocast on for the "
        "devices that it lists, and fail under that of others.",
        replace=eager.with_autocast,
        by_name=True,
    ),
    Gate(
        name="is_current_stream_capturing",
        modules=("torch.mtia",),
        reason=Reason.MISSING,
        why="torch.mtia has no counterpart of torch.cuda.is_current_stream_capturing.",
        replace=eager.is_current_stream_capturing,
        versions=torch_version.before(2, 15),
    ),
    *(
        Gate(
            name=name,
            modules=("torch.mtia",),
            reason=Reason.DEVICE,
            why="A program that has selected a device has not taken it into use, as it has on CUDA: so the tensors "
            "that FakeTensorMode makes are on the first device, and stay in its cache.",
            replace=replace,
        )
        for name, replace in (
            ("set_device", eager.taken_into_use),
            ("device.__enter__", eager.entered_and_taken_into_use),
        )
    ),
    Gate(
        name="memory_stats",
        modules=("torch.mtia.memory", "torch.mtia"),
        reason=Reason.DEVICE,
        why="Libraries ask every device for the flat names, such as active_bytes.all.peak; torch.mtia has nested ones.",
        replace=eager.flat_and_nested,
    ),
    Gate(
        name="get_device_name",
        modules=("torch.mtia",),
        reason=Reason.MISSING,
        why="torch.mtia has no counterpart of torch.cuda.get_device_name, which libraries log.",
        replace=eager.get_device_name,
    ),
    Gate(
        name="CompiledKernel._init_handles",
        modules=("triton.compiler.compiler",),
        reason=Reason.FAULT,
        why="A kernel that could not be loaded would be launched all the same, the second time.",
        issue="triton_failed_load.md",
        replace=eager.forgetting_what_did_not_load,
    ),
    Gate(
        name="compile.__code__",
        modules=("triton.compiler.compiler",),
        reason=Reason.DEVICES,
        why="With TRITON_STORE_BINARY_ONLY, which Helion's autotuner sets, Triton keeps the binaries of listed "
        "backends alone: kernels of others cannot be loaded.",
        replace=eager.keeping_our_binaries,
    ),
    Gate(
        name="TritonHOPifier.recreate_variable",
        modules=("torch._higher_order_ops.triton_kernel_wrap",),
        reason=Reason.FAULT,
        why="An autotuner over @triton.heuristics, or called with num_warps, is replaced in compiled code by one that "
        "forgets restore_value and reset_to_zero: the first call counts every measurement.",
        issue="pytorch_restore_value.patch",
        replace=eager.carrying_over,
    ),
    Gate(
        name="run_and_save_rng_state.__class__.__call__",
        modules=("torch._prims.rng_prims",),
        reason=Reason.DEVICES,
        why="Random operators that the backward runs again, with fallback_random, save their state on listed devices.",
        replace=random_state.saving_of_mtia,
    ),
    Gate(
        name="run_with_rng_state.__class__.__call__",
        modules=("torch._prims.rng_prims",),
        reason=Reason.DEVICES,
        why="Random operators that the backward runs again, with fallback_random, restore it on listed devices.",
        replace=random_state.restoring_of_mtia,
    ),
    Gate(
        name="hash_storage",
        modules=("torch.utils._content_store",),
        reason=Reason.DEVICES,
        why="The minifier saves the inputs of a graph under names that it computes on listed devices.",
        replace=eager.hash_on_the_cpu,
    ),
    Gate(
        name="_str_intern",
        modules=("torch._tensor_str",),
        reason=Reason.DEVICES,
        why="Tensors of mtia are copied to the CPU to be printed, which fails for those that stand for others in a "
        "traced program: looking for the overload of an operator prints them.",
        replace=eager.functional_tensors_as_they_are,
    ),
    Gate(
        name="jagged_scaled_dot_product_attention",
        modules=("torch.nested._internal.sdpa", "torch.nested._internal.ops"),
        reason=Reason.DEVICES,
        why="Attention over jagged tensors uses kernels of CUDA, or strided nested tensors, which assert that they "
        "are on a listed device.",
        replace=nested.attending_by_sequence,
    ),
    Gate(
        name="_validate_device",
        modules=("torch.nn.attention.flex_attention",),
        reason=Reason.DEVICES,
        why="FlexAttention refuses devices that it does not list.",
        replace=eager.attending_flexibly,
    ),
    device_lists.device_list(
        "associative_scan",
        "torch._higher_order_ops.associative_scan",
        "associative_scan in pointwise mode, which becomes one Triton kernel, refuses devices that it does not list.",
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="decomposition_table[baddbmm.dtype]",
        modules=("torch._decomp",),
        reason=Reason.FAULT,
        why="The decomposition of baddbmm is taken for the one with out_dtype as well, and takes that for beta.",
        issue="baddbmm_out_dtype.md",
        replace=fusion.batched_with_out_dtype,
        entry=lambda: torch.ops.aten.baddbmm.dtype,
        filled_by="torch._meta_registrations",
    ),
    Gate(
        name="is_int_mm",
        modules=("torch._higher_order_ops.out_dtype",),
        reason=Reason.DEVICES,
        why="out_dtype(mm, torch.int32, ...) is a product of int8 on CUDA and XPU, elsewhere one of int32.",
        replace=quantization.integers_on_mtia,
    ),
    Gate(
        name="_check_hardware_support",
        modules=("torchao.float8.inference", "torchao.quantization.quant_api"),
        reason=Reason.CLIENT,
        why="Products of two fp8 tensors are refused without a CUDA device that has them, or an XPU.",
        replace=quantization.scaled_products_on_mtia,
    ),
    Gate(
        name="Int4TilePackedTo4dTensor.from_hp",
        modules=("torchao.quantization.quantize_.workflows.int4.int4_tile_packed_to_4d_tensor",),
        reason=Reason.CLIENT,
        why="Weights of 4 bits are packed if torch.cuda's device has tensor cores.",
        replace=quantization.packed_on_mtia,
    ),
)
