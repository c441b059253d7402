"""Which dtypes each operator takes: runs the samples of PyTorch's operator database on the device and looks.

A few samples for each operator and dtype, forward and backward; what it dispatches to, below autograd, is noted.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("mtia", 0)
MOST_SAMPLES = 4
FOREACH = [
    *foreach_unary_op_db,
    *foreach_binary_op_db,
    *foreach_pointwise_op_db,
    *foreach_reduce_op_db,
    *foreach_other_op_db,
]
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


class _NoteDtypes(TorchDispatchMode):
    """Notes the dtype of the first tensor of every operator that succeeds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted: dict[str, set[str]] = defaultdict(set)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.device == DEVICE:
                name = func.name().removeprefix("aten::")
                self.noted[name].add(str(leaf.dtype).removeprefix("torch."))
                break
        return result


def moved(value: Any) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(DEVICE).requires_grad_(leaf.requires_grad)
        return DEVICE if leaf in ("cpu", torch.device("cpu")) else leaf

    return pytree.tree_map(move, value)


def samples(info: Any, dtype: torch.dtype, requires_grad: bool, **options: Any) -> Iterable[Any]:
    """`info.sample_inputs` without its bookkeeping, which takes longer than the operators."""
    torch.default_generator.manual_seed(0)
    result: Iterable[Any] = info.sample_inputs_func(info, "cpu", dtype, requires_grad, **options)
    return result


def _run_sample(info: Any, dtype: torch.dtype, mode: _NoteDtypes) -> None:
    differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    for sample in islice(samples(info, dtype, differentiable), MOST_SAMPLES):
        arguments = moved((sample.input, sample.args, sample.kwargs))
        with contextlib.suppress(Exception), mode:  # what does not run, is not noted
            result = info.op(arguments[0], *arguments[1], **arguments[2])
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.backward(torch.ones_like(result))


def _run_foreach_samples(info: Any, dtype: torch.dtype, mode: _NoteDtypes) -> None:
    """All samples, because operators on lists have an overload for each kind of last argument."""
    for sample in samples(info, dtype, False, num_input_tensors=[1]):
        for function in (info.method_variant, info.inplace_variant):
            if function is not None:
                arguments = moved((sample.input, sample.args, sample.kwargs))
                with contextlib.suppress(Exception), mode:
                    function(arguments[0], *arguments[1], **arguments[2])


def run_fused(dtype: torch.dtype) -> None:
    for optimizer in FUSED:
        for lr in (0.1, torch.tensor(0.1)):
            parameter = torch.ones(4, dtype=dtype, device=DEVICE, requires_grad=True)
            parameter.grad = torch.ones_like(parameter)
            optimizer([parameter], lr=lr, fused=True).step()
    gradients = [torch.ones(4, dtype=dtype, device=DEVICE)]
    number, infinite = torch.ones(1, device=DEVICE), torch.zeros(1, device=DEVICE)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, infinite, number)
    torch._amp_update_scale_(number, torch.zeros(1, dtype=torch.int32, device=DEVICE), infinite, 2.0, 0.5, 1)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def dtypes_by_overload(names: Set[str]) -> dict[str, set[str]]:
    """The dtypes, of those named, that each overload ran with; overloads that never ran are missing."""
    mode = _NoteDtypes()
    runs: list[tuple[Callable[[Any, torch.dtype, _NoteDtypes], None], Any]] = [
        *((_run_sample, info) for info in op_db),
        *((_run_foreach_samples, info) for info in FOREACH),
    ]
    with quiet():
        for dtype in (getattr(torch, name) for name in sorted(names)):
            for run, info in runs:
                if dtype in info.supported_dtypes("cpu"):
                    with contextlib.suppress(Exception):
                        run(info, dtype, mode)
            if dtype.is_floating_point:
                with mode:
                    run_fused(dtype)
    torch.mtia.synchronize()
    return {name: noted & names for name, noted in mode.noted.items() if noted & names}
