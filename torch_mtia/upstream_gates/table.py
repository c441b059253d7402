"""Rows of names in modules that `import torch` imports."""

from __future__ import annotations

import torch

from torch_mtia import torch_version
from torch_mtia.upstream_gates import device_lists
from torch_mtia.upstream_gates.deferred import (
    at_the_first_call,
    eager,
    fusion,
    inductor,
    parallel,
    process_groups,
    random_state,
)
from torch_mtia.upstream_gates.gate import Gate, Reason

GATES: tuple[Gate, ...] = (
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
    Gate(
        name="get_device_name",
        modules=("torch.mtia",),
        reason=Reason.MISSING,
        why="torch.mtia has no counterpart of torch.cuda.get_device_name, which libraries log.",
        replace=eager.get_device_name,
    ),
    Gate(
        name="run_and_save_rng_state.__class__.__call__",
        modules=("torch._prims.rng_prims",),
        reason=Reason.DEVICES,
        why="Random operators that the backward runs again, with fallback_random, save their state on listed devices.",
        replace=at_the_first_call(random_state.saving_of_mtia),
    ),
    Gate(
        name="run_with_rng_state.__class__.__call__",
        modules=("torch._prims.rng_prims",),
        reason=Reason.DEVICES,
        why="Random operators that the backward runs again, with fallback_random, restore it on listed devices.",
        replace=at_the_first_call(random_state.restoring_of_mtia),
    ),
    Gate(
        name="hash_storage",
        modules=("torch.utils._content_store",),
        reason=Reason.DEVICES,
        why="The minifier saves the inputs of a graph under names that it computes on listed devices.",
        replace=at_the_first_call(eager.hash_on_the_cpu),
    ),
    Gate(
        name="_str_intern",
        modules=("torch._tensor_str",),
        reason=Reason.DEVICES,
        why="Tensors of mtia are copied to the CPU to be printed, which fails for those that stand for others in a "
        "traced program: looking for the overload of an operator prints them.",
        replace=eager.functional_tensors_as_they_are,
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
        name="_new_process_group_helper",
        modules=("torch.distributed.distributed_c10d",),
        reason=Reason.DEVICES,
        why="A group without a backend is taken for one of gloo where there is no NCCL, and DDP asks it for that one. "
        "Processes that torchrun restarts find in its store the addresses of those that have died, and fail.",
        replace=at_the_first_call(process_groups.with_the_backend_of_the_accelerator),
    ),
    Gate(
        name="monitored_barrier",
        modules=("torch.distributed.distributed_c10d", "torch.distributed"),
        reason=Reason.DEVICES,
        why="It is for gloo only, by name.",
        replace=at_the_first_call(process_groups.monitored_by_the_store),
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="ProcessGroup._get_sequence_number_for_group",
        modules=("torch._C._distributed_c10d",),
        reason=Reason.DEVICES,
        why="Groups have the sequence numbers of listed backends.",
        replace=at_the_first_call(process_groups.numbers_of_the_device),
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="_set_pg_timeout",
        modules=("torch.distributed.distributed_c10d",),
        reason=Reason.DEVICES,
        why="It sets the timeout of listed backends.",
        replace=at_the_first_call(process_groups.with_timeouts_of_the_device),
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="DistributedDataParallel._check_comm_hook",
        modules=("torch.nn.parallel.distributed",),
        reason=Reason.DEVICES,
        why="The hooks that compress gradients to bfloat16 are refused without NCCL or XCCL.",
        replace=parallel.any_hook,
    ),
    Gate(
        name="SyncBatchNorm.forward",
        modules=("torch.nn.modules.batchnorm",),
        reason=Reason.DEVICES,
        why="SyncBatchNorm refuses devices that it does not list.",
        replace=parallel.synchronized_on_mtia,
    ),
    Gate(
        name="torch",
        modules=("torch.nn.parallel.comm",),
        reason=Reason.CUDA,
        why="Copies between devices of one process, of which DataParallel is made, are functions of torch._C for CUDA "
        "only, and in its wheels.",
        replace=parallel.with_copies,
    ),
    Gate(
        name="_select_conv_backend",
        modules=("torch._C",),
        reason=Reason.DEVICE,
        why="Says how the result of a convolution lies, for compiled code, which asserts it. Convolutions of mtia are "
        "the CPU's.",
        replace=at_the_first_call(inductor.convolution_of_cpu),
    ),
    Gate(
        name="_conv_determine_backend_memory_format",
        modules=("torch._C",),
        reason=Reason.DEVICE,
        why="Says how the result of a convolution of a batch of one lies: only the CPU's keep channels last.",
        replace=at_the_first_call(inductor.convolution_of_cpu),
    ),
)
