"""Which dtypes CPU kernels take is known before a call: none is tried out, and none is found out too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from tools.codegen import dtypes
from torch_mtia import _C

Answers = Callable[[], list[tuple[str, str, bool]]]


@pytest.fixture
def answers() -> Iterator[Answers]:
    """What CPU kernels were asked during the test: kernel, dtypes, whether it refused."""
    _C._take_kernel_answers()
    _C._record_kernel_answers(True)
    yield _C._take_kernel_answers
    _C._record_kernel_answers(False)


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, device="mtia").to(dtype)


def test_a_written_table_reads_the_same(tmp_path: Any) -> None:
    known = {
        "take_out": {"Float Long Float", "Double Long Double", "Long Long Long"},
        "cat_out": {"Float +Double Double", "Float Float"},
        "nll": {"Float Long - Float", "BFloat16 Long Float -"},
    }
    dtypes.save(known, tmp_path / "dtypes.yaml")
    assert dtypes.load(tmp_path / "dtypes.yaml") == known


USUAL: dict[str, Callable[[], Any]] = {
    "pointwise": lambda: f(3) + f(3),
    "integers": lambda: f(3, dtype=torch.int64) * 2,
    "comparison": lambda: f(3, dtype=torch.bfloat16) < f(3, dtype=torch.bfloat16),
    "promotion": lambda: f(3, dtype=torch.int32) + f(3),
    "index": lambda: f(3)[f(2, dtype=torch.int64)],
    "structured": lambda: torch.softmax(f(3, dtype=torch.float16), 0),
    "outputs of its own": lambda: F.smooth_l1_loss(f(3).requires_grad_(), f(3)).backward(),
    "indices of 32 bits": lambda: f(3).index_select(0, f(2, dtype=torch.int32)),
    "list": lambda: torch._foreach_add_([f(2), f(3)], [f(2), f(3)]),
    "fused": lambda: torch.optim.AdamW(_parameters(), fused=True).step(),
    "mixed": lambda: F.layer_norm(f(2, 3, dtype=torch.bfloat16), (3,), f(3), f(3)),
}


def _parameters() -> list[torch.Tensor]:
    parameter = f(3).requires_grad_()
    parameter.grad = f(3)
    return [parameter]


@pytest.mark.parametrize("name", USUAL)
def test_no_kernel_is_asked_about_usual_dtypes(name: str, answers: Answers) -> None:
    USUAL[name]()
    assert answers() == []


UNUSUAL: dict[str, Callable[[str], Any]] = {
    "pointwise": lambda d: torch.ones(3, device=d).to(torch.float8_e4m3fn) + 1,
    "number": lambda d: torch.ones(3, device=d).to(torch.float8_e4m3fn) * 2,
    "structured": lambda d: torch.ones(3, device=d, dtype=torch.int64).softmax(0),
    "product": lambda d: torch.ones(2, 2, device=d).bool() @ torch.ones(2, 2, device=d).bool(),
    "outputs of its own": lambda d: F.pdist(torch.ones(2, 3, device=d).half()),
    "list": lambda d: torch._foreach_lerp_(
        [torch.ones(2, device=d).to(torch.float8_e5m2)], [torch.ones(2, device=d).to(torch.float8_e5m2)], 0.5
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_the_cpu_refuses_is_refused_at_the_call_in_its_words(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"not implemented|must match|dtype") as here:
        UNUSUAL[name]("mtia")
    with pytest.raises(RuntimeError, match=r"not implemented|must match|dtype") as there:
        UNUSUAL[name]("cpu")
    assert (type(here.value), str(here.value)) == (type(there.value), str(there.value))


def test_dtypes_that_are_not_in_the_table_are_asked_about_at_every_call(answers: Answers) -> None:
    x, mask = f(3, dtype=torch.float8_e4m3fn), f(3, dtype=torch.bool)
    for _ in range(2):
        assert torch.where(mask, x, x).dtype == x.dtype
        assert [(kernel, refused) for kernel, _, refused in answers() if kernel == "where_kernel"] == [
            ("where_kernel", False)
        ]


CLAIMS = [
    info
    for info in op_db
    if info.name
    in (
        "add",
        "sum",
        "softmax",
        "index_select",
        "nn.functional.nll_loss",
        "take",
        "sort",
        "linalg.qr",
        "nn.functional.interpolate",
    )
]


@pytest.mark.parametrize("info", CLAIMS, ids=lambda info: f"{info.name} {info.variant_test_name}".strip())
def test_samples_run_with_every_dtype_without_asking(info: OpInfo, answers: Answers) -> None:
    for dtype in info.supported_dtypes("cpu") - {torch.complex32}:
        for sample in list(info.sample_inputs("mtia", dtype))[:4]:
            answers()
            info.op(sample.input, *sample.args, **sample.kwargs)
            assert all(not signature for _, signature, _ in answers()), dtype
    torch.mtia.synchronize()
