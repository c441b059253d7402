"""Rows of Triton, torchao, and of modules of PyTorch that few programs import."""

from __future__ import annotations

import torch

from torch_mtia import torch_version
from torch_mtia.upstream_gates.deferred import eager, fusion, nested, quantization
from torch_mtia.upstream_gates.gate import Gate, Reason

GATES: tuple[Gate, ...] = (
    Gate(
        name="CompiledKernel._init_handles",
        modules=("triton.compiler.compiler",),
        reason=Reason.FAULT,
        why="A kernel that could not be loaded would be launched all the same, the second time; and one of another "
        "driver would read the addresses of tensors of this device.",
        issue="triton_failed_load.md",
        replace=eager.loaded_for_its_device,
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
        name="Autotuner.prune_configs",
        modules=("triton.runtime.autotuner",),
        reason=Reason.SPEED,
        why="With it, an autotuner begins to measure: what it measured before was for other arguments.",
        replace=eager.forgetting_what_was_measured,
    ),
    Gate(
        name="Autotuner._bench",
        modules=("triton.runtime.autotuner",),
        reason=Reason.SPEED,
        why="Configurations that differ in what only a GPU has, such as num_warps, are the same code here: an "
        "autotuner would measure it once for each.",
        replace=eager.measured_once,
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
        name="jagged_scaled_dot_product_attention",
        modules=("torch.nested._internal.sdpa", "torch.nested._internal.ops"),
        reason=Reason.DEVICES,
        why="Attention over jagged tensors uses kernels of CUDA, or strided nested tensors, which assert that they "
        "are on a listed device.",
        replace=nested.attending_by_sequence,
    ),
    Gate(
        name="flop_registry[baddbmm]",
        modules=("torch.utils.flop_counter",),
        reason=Reason.FAULT,
        why="The count of operations of baddbmm serves the one with out_dtype as well, and takes that for a shape.",
        issue="baddbmm_out_dtype.md",
        replace=fusion.operations_with_out_dtype,
        versions=torch_version.before(2, 14),
        entry=lambda: torch.ops.aten.baddbmm,
    ),
    Gate(
        name="_validate_device",
        modules=("torch.nn.attention.flex_attention",),
        reason=Reason.DEVICES,
        why="FlexAttention refuses devices that it does not list.",
        replace=eager.attending_flexibly,
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
