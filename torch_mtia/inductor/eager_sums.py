"""Operators that compiled code leaves to their eager kernels, under `torch_mtia.numerics` or Inductor's option
`batch_invariant`: sums and matmuls, whose bits depend on the order in which they add up."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config
from torch.fx import Node

from torch_mtia.backend import device_type
from torch_mtia.inductor.decompositions import whole

# By name, with all overloads.
OPERATORS = frozenset(
    (
        *("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm", "_addmm_activation"),
        *("convolution", "convolution_backward"),
        *("sum", "nansum", "mean", "prod", "var", "var_mean", "std", "std_mean"),
        *("norm", "linalg_vector_norm", "renorm", "dist", "_foreach_norm", "trace"),
        *("cumsum", "cumprod", "logcumsumexp", "_logcumsumexp"),
        *("logsumexp", "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
        *("_safe_softmax", "_cdist_forward", "_cdist_backward", "_pdist_forward", "_pdist_backward"),
        *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
        *("_fused_rms_norm", "_fused_rms_norm_backward"),
        *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        *("_native_batch_norm_legit_functional", "native_batch_norm_backward", "_batch_norm_with_update"),
        *("_batch_norm_with_update_functional", "batch_norm_backward"),
        *("embedding_dense_backward", "index_add", "index_put", "scatter_add", "scatter_reduce"),
    )
)

# Of Inductor, for functions that are compiled in a mode: the order of operators in a pattern is not the program's.
OPTIONS: dict[str, Any] = {"batch_invariant": True, "emulate_precision_casts": True, "pattern_matcher": False}


def is_left_whole(node: Node) -> bool:
    """Whether a node is to be lowered to the call of its operator."""
    if not config.batch_invariant or not _is_listed(node.target):
        return False
    tensors = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(value, torch.Tensor) and _counts(value) for value in tensors)


def without_listed(
    original: Callable[[], dict[Any, Callable[..., Any]]],
) -> Callable[[], dict[Any, Callable[..., Any]]]:
    """Leaves the listed operators whole for tensors of the device."""

    @functools.wraps(original)  # caches pickle it by its name
    def select_decomp_table() -> dict[Any, Callable[..., Any]]:
        table = original()
        if not config.batch_invariant:
            return table
        return {target: whole(rule) if _is_listed(target) else rule for target, rule in table.items()}

    return select_decomp_table


def _is_listed(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" and target._opname in OPERATORS


def _counts(value: torch.Tensor) -> bool:
    """Integers are exact."""
    return value.device.type == device_type() and (value.is_floating_point() or value.is_complex())
