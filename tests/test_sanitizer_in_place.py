"""The sanitizer knows what an operator in place reads of the tensors that it changes: that on which its results depend,
which shows on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_unary_op_db,
    op_db,
)
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from torch_mtia import fallback, sanitizer

CPU = torch.device("cpu")
MOST_SAMPLES = 30
ON_LISTS = [*foreach_unary_op_db, *foreach_binary_op_db, *foreach_pointwise_op_db, *foreach_other_op_db]
# By default, those that do not simply read all that they change, and a few that do.
SLICE = {"add", "addbmm", "addcmul", "addmm", "addmv", "addr", "baddbmm", "clamp", "copysign", "cumsum", "index_add"}
SLICE |= {"index_copy", "index_fill", "index_put", "index_reduce", "lerp", "masked_fill", "masked_scatter", "put"}
SLICE |= {"scatter", "scatter_add", "scatter_reduce", "nn.functional.dropout", "normal", "zero_", "fill", "uniform"}
SLICE |= {"_foreach_add", "_foreach_copy", "_foreach_lerp", "_foreach_zero"}
# They read numbers on which their results do not depend, for these samples.
ALIKE_WHATEVER_THEY_READ = {"addcmul", "eq", "ne", "logical_or", "igamma", "igammac"}
# They read numbers to pass them on, but of memory in which nothing is written they make nothing that is of use.
ONLY_PASS_ON = {"tril", "triu"}

Tensors = list[torch.Tensor]

pytestmark = pytest.mark.filterwarnings("ignore")


def changed_by(sample: SampleInput) -> Tensors:
    return [sample.input] if isinstance(sample.input, torch.Tensor) else list(sample.input)


def called(info: OpInfo, changed: Tensors, sample: SampleInput) -> Tensors:
    """Changes the tensors by the operator, with the other arguments of the sample."""

    def move(leaf: Any) -> Any:
        return leaf.detach().to(changed[0].device, copy=True) if isinstance(leaf, torch.Tensor) else leaf

    torch.manual_seed(0)
    args, kwargs = pytree.tree_map(move, (sample.args, sample.kwargs))
    info.inplace_variant(changed[0] if isinstance(sample.input, torch.Tensor) else changed, *args, **kwargs)
    return changed


def fillings(tensors: Tensors) -> Iterator[Tensors]:
    """What the tensors may have held before."""
    generator = torch.Generator().manual_seed(0)
    fills: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda tensor: tensor.uniform_(0.05, 0.95, generator=generator),
        lambda tensor: tensor.uniform_(1.5, 6.5, generator=generator),
        lambda tensor: tensor.fill_(0),
        lambda tensor: tensor.fill_(-30000.5),
        lambda tensor: tensor.fill_(float("nan")),
    ]
    for fill in fills:
        yield [fill(torch.empty_like(tensor)) for tensor in tensors]


def numbers(tensors: Tensors) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def reads(info: OpInfo, sample: SampleInput) -> bool | None:
    """Whether the operator reads what it changes; None: it keeps all of it, or it does not show."""
    olds, news = [], []
    for old in fillings(changed_by(sample)):
        with contextlib.suppress(RuntimeError):
            new = called(info, [tensor.clone() for tensor in old], sample)
            if [(each.shape, each.stride()) for each in old] != [(each.shape, each.stride()) for each in new]:
                return None
            olds.append(numbers(old))
            news.append(numbers(new))
    if len(olds) < 2:
        return None
    before, after = torch.stack(olds), torch.stack(news)
    is_kept = torch.isclose(after, before, rtol=0, atol=0, equal_nan=True).all(0)
    is_overwritten = torch.isclose(after, after[:1], rtol=0, atol=0, equal_nan=True).all(0)
    return None if is_kept.all() else not (is_kept | is_overwritten).all()


def is_reported(info: OpInfo, sample: SampleInput, device: torch.device) -> bool:
    sanitizer.reports().clear()
    with sanitizer.enabled("init"):
        empty = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in changed_by(sample)]
        called(info, empty, sample)
    found = {report.kind for report in sanitizer.reports()}
    sanitizer.reports().clear()
    assert found <= {"uninitialized"}
    return bool(found)


def falls_back(info: OpInfo, sample: SampleInput, device: torch.device) -> bool:
    try:
        with fallback.forbid():
            called(info, [torch.zeros_like(tensor, device=device) for tensor in changed_by(sample)], sample)
    except NotImplementedError:
        return True
    return False


@pytest.mark.parametrize(
    "info",
    [
        pytest.param(info, id=info.formatted_name, marks=[] if info.name in SLICE else pytest.mark.wide)
        for info in [*op_db, *ON_LISTS]
        if info.inplace_variant is not None and torch.float32 in info.supported_dtypes("cpu")
    ],
)
def test_what_an_operator_in_place_reads_is_reported(device: torch.device, info: OpInfo) -> None:
    for sample in islice(info.sample_inputs("cpu", torch.float32), MOST_SAMPLES):
        if sample.broadcasts_input or not sum(tensor.numel() for tensor in changed_by(sample)):
            continue
        expected = reads(info, sample)
        if expected is None or info.name in ONLY_PASS_ON:
            continue
        actual = is_reported(info, sample, device)
        if actual and not expected:
            assert info.name in ALIKE_WHATEVER_THEY_READ, f"it reads nothing of it: {sample}"
        if expected and not actual:
            assert falls_back(info, sample, device), f"it reads it: {sample}"
