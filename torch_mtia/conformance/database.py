"""PyTorch's database of operators (OpInfo) as test cases, and the comparison of a device with the CPU."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, SampleInput, UnaryUfuncInfo
from torch.utils import _pytree as pytree

CPU = torch.device("cpu")
SEED = 0
# The dtype with which suites test operators that they do not test in every dtype: the first that the operator knows.
PREFERRED = (torch.float32, torch.int64, torch.bool, torch.complex64)
# Operators that want the tensors after their first argument on the CPU, on every device.
HOST_ARGUMENTS = ("tensor_split",)
# Operators of which the database does not say where they make a tensor.
MAKING = ("arange", "linspace", "logspace")
# Functions made of operators that each round to 16 bits, in another order on each device.
ROUND_OFTEN = ("mvlgamma", "nn.functional.linear_cross_entropy")
# Products that oneDNN computes on processors with AMX, and makes NaN of what other processors make the largest number.
WITHOUT_ONEDNN = ("torch._scaled_mm",)


@contextlib.contextmanager
def outside_of_unittest() -> Iterator[None]:
    """PyTorch's databases look through the whole stack, and read its sources, for a test of unittest's that is to know
    the sample: most of the time that samples take where there is none."""
    with contextlib.ExitStack() as stack:
        for module in (common_utils, core):
            stack.enter_context(mock.patch.object(module, "extract_test_fn", return_value=None))
        yield


@dataclass(frozen=True)
class Case:
    """An operator in one dtype."""

    info: OpInfo
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return full_name(self.info)

    @property
    def differentiable(self) -> bool:
        return self.info.supports_autograd and self.dtype in self.info.supported_backward_dtypes("cpu")

    @property
    def elementwise(self) -> bool:
        return isinstance(self.info, (UnaryUfuncInfo, BinaryUfuncInfo))

    def samples(self, *, requires_grad: bool = False, seed: int = SEED) -> Iterator[SampleInput]:
        seed_all(seed)
        with outside_of_unittest():
            samples = self.info.sample_inputs("cpu", self.dtype, requires_grad=requires_grad, set_seed=False)
        for sample in samples:
            if self.info.name in MAKING:
                sample.kwargs.setdefault("device", "cpu")
            yield self._with_host_arguments(sample)

    def noncontiguous(self, sample: SampleInput) -> SampleInput:
        return self._with_host_arguments(sample.noncontiguous())

    def _with_host_arguments(self, sample: SampleInput) -> SampleInput:
        if self.info.name in HOST_ARGUMENTS:
            for tensor in tensors_of((sample.args, sample.kwargs)):
                tensor.stays_on_host = True  # type: ignore[attr-defined]
        return sample

    def gradient_tolerance(self) -> dict[str, float]:
        """As upstream has none for gradients: the one for results, and not less than what a sum costs."""
        if self.dtype.is_floating_point and self.dtype.itemsize == 1:
            return {}  # compared by their bits
        least = {torch.float16: 1e-2, torch.bfloat16: 4e-2, torch.float32: 1e-4, torch.complex64: 1e-4}.get(
            self.dtype, 1e-7
        )
        return {name: max(least, self.tolerance().get(name, 0.0)) for name in ("atol", "rtol")}

    def tolerance(self) -> dict[str, float]:
        """Upstream's, where it has one for comparisons with the CPU."""
        decorators = self.info.get_decorators("TestCommon", "test_compare_cpu", "cuda", self.dtype, {})
        for decorator in decorators:
            if isinstance(decorator, toleranceOverride) and self.dtype in decorator.d:
                return {"atol": decorator.d[self.dtype].atol, "rtol": decorator.d[self.dtype].rtol}
        if self.elementwise and self.dtype in (torch.float64, torch.complex128):
            return {"atol": 1e-9, "rtol": 1e-9}  # the default is what float32 gives
        if self.info.name in ROUND_OFTEN and self.dtype in (torch.float16, torch.bfloat16):
            return {"atol": 5e-2, "rtol": 5e-2}
        return {}


def full_name(info: OpInfo) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def cases(keep: Callable[[Case], bool] = lambda _case: True) -> pytest.MarkDecorator:
    """Every operator in every dtype that it knows on the CPU."""
    found = [Case(info, dtype) for info in op_db for dtype in sorted(info.supported_dtypes("cpu"), key=str)]
    return _parameters([case for case in found if keep(case)], lambda case: f"{case.name}/{dtype_name(case.dtype)}")


def preferred_cases(keep: Callable[[Case], bool] = lambda _case: True) -> pytest.MarkDecorator:
    """Every operator in one dtype."""
    found = []
    for info in op_db:
        known = info.supported_dtypes("cpu")
        dtype = next((dtype for dtype in (*PREFERRED, *sorted(known, key=str)) if dtype in known), None)
        if dtype is not None:
            found.append(Case(info, dtype))
    return _parameters([case for case in found if keep(case)], lambda case: f"{case.name}/{dtype_name(case.dtype)}")


def _parameters(found: list[Case], name: Callable[[Case], str]) -> pytest.MarkDecorator:
    def marks(case: Case) -> list[pytest.MarkDecorator]:
        return [pytest.mark.without_onednn] if case.info.name in WITHOUT_ONEDNN else []

    return pytest.mark.parametrize("case", [pytest.param(case, id=name(case), marks=marks(case)) for case in found])


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


# Samples -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def naming(number: int, sample: SampleInput) -> Iterator[None]:
    """Errors inside carry the sample, for the report."""
    try:
        yield
    except Exception as error:
        error.conformance_sample = f"sample {number}: {sample.summary()}"[:2000]  # type: ignore[attr-defined]
        raise


def arguments_of(sample: SampleInput) -> tuple[Any, Any, Any]:
    return sample.input, sample.args, sample.kwargs


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_image(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.dim() in CHANNELS_LAST


def has_images(sample: SampleInput) -> bool:
    return any(map(is_image, tensors_of(arguments_of(sample))))


def channels_last(arguments: Any) -> Any:
    """Returns the arguments, images and volumes among them with the channels last."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim()]) if is_image(tensor) else tensor

    return pytree.tree_map_only(torch.Tensor, change, arguments)


def moved(value: Any, device: torch.device) -> Any:
    """Returns a copy of the arguments on the device, with leaves of their own, of the same strides and overlaps."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if hasattr(leaf, "stays_on_host"):
                return leaf
            return _moved_tensor(leaf.detach(), device).requires_grad_(leaf.requires_grad)
        return device if isinstance(leaf, (str, torch.device)) and leaf in ("cpu", CPU) else leaf

    return pytree.tree_map(move, value)


OFFSET = 16  # elements: a memory may be seen as numbers of another dtype, of up to 16 bytes


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the strides say where in a memory the elements lie."""
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized and tensor.numel() > 0


def _moved_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if not _is_plain(tensor):
        return tensor.clone() if device == CPU else tensor.to(device)
    if tensor.is_conj():
        return _moved_tensor(tensor.conj(), device).conj()
    if tensor.is_neg():
        return torch._neg_view(_moved_tensor(torch._neg_view(tensor), device))
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    before = tensor.storage_offset() if tensor.is_contiguous() else OFFSET
    memory = torch.zeros(before + extent, dtype=tensor.dtype, device=device)
    memory[before:].copy_(tensor.as_strided((extent,), (1,)))
    return memory.as_strided(tensor.shape, tensor.stride(), before)


# Comparison ----------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The CPU refuses the call, which therefore says nothing about the device."""


@contextlib.contextmanager
def unseeded() -> Iterator[None]:
    """Many operators of the database seed the generators themselves, and set them back: not inside."""
    with (
        mock.patch.object(torch, "manual_seed"),
        mock.patch.object(torch.testing._utils, "freeze_rng_state", contextlib.nullcontext),
    ):
        yield


def is_undefined(case: Case) -> bool:
    """Whether the operator returns memory as it finds it."""
    return "empty" in case.info.name


def is_random(call: Callable[[], Any]) -> bool:
    """Whether a call gives something else on the CPU with another seed."""
    drawn = []
    with unseeded():
        for seed in range(8):  # some draw little
            torch.default_generator.manual_seed(seed)
            drawn.append(call())
    return not all(_equal(drawn[0], other) for other in drawn)


def _equal(first: Any, second: Any) -> bool:
    try:
        if isinstance(first, torch.Tensor) and torch.equal(first, second):
            return True
    except (RuntimeError, TypeError):  # a layout or a dtype that it does not know
        pass
    try:
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    except (AssertionError, TypeError):
        return False
    return True


def on_cpu(call: Callable[[], Any]) -> Any:
    """Returns the CPU's result. Raises Refused for any error."""
    try:
        return call()
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def assert_same(actual: Any, expected: Any, device: torch.device, tolerance: dict[str, float]) -> None:
    """The device's result is the CPU's, and lies on the device."""
    assert_alike(actual, expected, device)
    torch.testing.assert_close(
        pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), actual),
        pytree.tree_map_only(torch.Tensor, lambda t: t.detach(), expected),
        check_device=False,
        equal_nan=True,
        rtol=tolerance.get("rtol"),
        atol=tolerance.get("atol"),
    )


def assert_untouched(actual: Any, expected: Any, before: Any) -> None:
    """What the CPU leaves of the arguments as it was, the device leaves, too, to the last bit."""
    for ours, theirs, old in zip(*map(tensors_of, (actual, expected, before)), strict=True):
        if _equal(theirs, old):
            assert _equal(ours.detach().cpu(), old), "writes into an argument that the CPU only reads"
        if _is_plain(ours) and not ours.is_contiguous():
            assert _equal(_around(ours), _around(theirs)), "writes between the elements of an argument"


def _around(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory that a tensor lies in, without its elements."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    numbers = tensor.detach().as_strided((size,), (1,), 0).cpu().resolve_conj().resolve_neg().clone()
    memory = numbers.view(torch.uint8).view(size, -1)  # fewer dtypes than there are can be indexed
    places = torch.arange(size).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    memory[places.flatten()] = 0
    return memory


def assert_same_or_random(
    actual: Any,
    expected: Any,
    device: torch.device,
    tolerance: dict[str, float],
    again: Callable[[], Any],
) -> None:
    """As `assert_same`, of the result's structure alone if `again`, the call on the CPU, draws random numbers."""
    try:
        assert_same(actual, expected, device, tolerance)
    except AssertionError:
        if not is_random(again):
            raise
        assert_alike(actual, expected, device)


def assert_alike(actual: Any, expected: Any, device: torch.device) -> None:
    """The results have the same structure, sizes and dtypes."""
    ours, structure = pytree.tree_flatten(actual)
    theirs, expected_structure = pytree.tree_flatten(expected)
    assert structure == expected_structure, f"returns {structure}, the CPU {expected_structure}"
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            on_host = device == CPU or hasattr(one, "stays_on_host")
            assert one.device == (CPU if on_host else device), f"the result is on {one.device}"
            assert one.shape == other.shape, f"size {tuple(one.shape)}, the CPU's {tuple(other.shape)}"
            assert one.dtype == other.dtype, f"dtype {one.dtype}, the CPU's {other.dtype}"
            assert one.layout == other.layout, f"layout {one.layout}, the CPU's {other.layout}"
        else:
            assert type(one) is type(other), f"{one!r}, the CPU {other!r}"


def gradient_of(result: torch.Tensor) -> torch.Tensor:
    """Returns a gradient for the result that differs from element to element: ones would hide which belongs to which,
    and softmax's gradient of them is 0. Made on the device, of numbers that every dtype has."""
    numbers = torch.arange(result.numel(), device=result.device).remainder(7).reshape(result.shape) / 8 + 0.5
    return (numbers * (1 + 0.5j) if result.is_complex() else numbers).to(result.dtype)


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


SHORT = (torch.float16, torch.bfloat16)
# Functions of which a result differs from float64's by more than the tolerance, for the most part on CUDA too: PyTorch
# makes them of operators that each round, their kernels round twice, or they draw numbers, look at a memory or step
# over a limit in the dtype of their operands.
ROUNDED_IN_BETWEEN = frozenset(
    (
        *("addbmm", "addr", "as_strided.partial_views", "cross", "cumulative_trapezoid", "diff", "div.trunc_rounding"),
        *("gradient", "linalg.cross", "linalg.multi_dot", "linalg.vecdot", "linspace", "linspace.tensor_overload"),
        *("log_softmax", "logit", "logspace", "logspace.tensor_overload", "masked.log_softmax", "masked.logsumexp"),
        *("masked.std", "masked.var", "matrix_exp", "nn.functional.bilinear", "nn.functional.binary_cross_entropy"),
        *("nn.functional.binary_cross_entropy_with_logits", "nn.functional.cosine_embedding_loss"),
        *("nn.functional.cosine_similarity", "nn.functional.cross_entropy", "nn.functional.embedding_bag"),
        *("nn.functional.fractional_max_pool2d", "nn.functional.gaussian_nll_loss"),
        *("nn.functional.hinge_embedding_loss", "nn.functional.interpolate.linear"),
        *("nn.functional.interpolate.trilinear", "nn.functional.kl_div", "nn.functional.margin_ranking_loss"),
        *("nn.functional.multi_head_attention_forward", "nn.functional.multilabel_soft_margin_loss"),
        *("nn.functional.poisson_nll_loss", "nn.functional.scaled_dot_product_attention"),
        *("nn.functional.soft_margin_loss", "nn.functional.tanhshrink", "nn.functional.triplet_margin_loss"),
        *("nn.functional.triplet_margin_with_distance_loss", "special.ndtr", "trapezoid", "trapz"),
    )
)
ROUNDED_IN_BETWEEN_BACKWARD = frozenset(
    (
        *("__rpow__", "_segment_reduce.lengths", "_segment_reduce.offsets", "addbmm", "as_strided.partial_views"),
        *("diff", "div.trunc_rounding", "fmod", "linalg.norm", "linalg.vector_norm", "logcumsumexp", "logit"),
        *("masked.cumprod", "masked.prod", "matrix_exp", "nn.functional.binary_cross_entropy_with_logits"),
        *("nn.functional.fractional_max_pool2d", "nn.functional.linear_cross_entropy.chunked_none"),
        *("nn.functional.normalize", "nn.functional.scaled_dot_product_attention", "nn.functional.soft_margin_loss"),
        *("norm", "polygamma.polygamma_n_0", "pow", "special.polygamma.special_polygamma_n_0"),
    )
)


def widened(value: Any, dtype: torch.dtype) -> Any:
    """Returns a copy of the arguments, on the CPU, with numbers of 16 bits, and the names of their dtypes, in a wider
    dtype."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype in SHORT:
            return leaf.detach().to(dtype).requires_grad_(leaf.requires_grad)
        return dtype if isinstance(leaf, torch.dtype) and leaf in SHORT else leaf

    return pytree.tree_map(widen, moved(value, CPU))


def rounded_from(dtype: torch.dtype, call: Callable[[Any], Any], arguments: Any, like: Any) -> Any:
    """Returns what `call` gives for the arguments in the wider dtype, rounded to the dtypes of `like`, its result for
    the arguments as they are; None if it refuses them in that dtype, or gives something else than `like`."""
    try:
        exact = call(widened(arguments, dtype))
        assert_alike(
            rounded := pytree.tree_map(
                lambda wide, known: wide.to(known.dtype) if isinstance(wide, torch.Tensor) else wide, exact, like
            ),
            like,
            CPU,
        )
    except Exception:
        return None
    return rounded


def each_sample(samples: Iterator[SampleInput], check: Callable[[SampleInput], None]) -> None:
    """Calls `check` with every sample; skips the test if the CPU refuses all of them."""
    checked, refusal = 0, "the database has none"
    for number, sample in enumerate(samples):
        with naming(number, sample):
            try:
                check(sample)
                checked += 1
            except Refused as error:
                refusal = f"the CPU refuses them: {error}"
    if not checked:
        pytest.skip(f"no sample to compare; {refusal.partition(chr(10))[0]}")
