"""Every operator of PyTorch's database in every dtype that it knows on the CPU, with every sample, against the CPU."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    SampleInput,
    UnaryUfuncInfo,
    generate_elementwise_binary_broadcasting_tensors,
    generate_elementwise_binary_extremal_value_tensors,
    generate_elementwise_unary_extremal_value_tensors,
)
from torch.utils import _pytree as pytree

from torch_mtia.conformance.database import (
    CPU,
    ROUNDED_IN_BETWEEN,
    SHORT,
    Case,
    Refused,
    arguments_of,
    assert_alike,
    assert_same,
    assert_same_or_random,
    assert_untouched,
    cases,
    channels_last,
    each_sample,
    full_name,
    has_images,
    is_undefined,
    moved,
    on_cpu,
    outside_of_unittest,
    preferred_cases,
    rounded_from,
    seed_all,
    tensors_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")

FUNCTION = Callable[..., Any]
FORM_SAMPLES = 20  # where the form of a call matters, and the values do not
ERROR_SAMPLES = 2
LARGE_SAMPLES, LARGE = 3, 2**17 + 3
BITS_SAMPLES = 20


def compare(case: Case, function: FUNCTION, device: torch.device, sample: SampleInput) -> None:
    """The function's result for the sample on the device is that on the CPU."""
    here, there = (moved(arguments_of(sample), where) for where in (CPU, device))
    expected = on_cpu(lambda: called(function, here))
    actual = called(function, there)
    assert_untouched(there, here, arguments_of(sample))
    if is_undefined(case):
        assert_alike(actual, expected, device)
        return
    # With the results, the arguments: what the call has written, and nothing else.
    ours, theirs = (actual, tensors_of(there)), (expected, tensors_of(here))

    def again() -> Any:
        return called(function, moved(arguments_of(sample), CPU))

    def exact(dtype: torch.dtype) -> Any:
        def call(arguments: Any) -> Any:
            return called(function, arguments), tensors_of(arguments)

        return rounded_from(dtype, call, arguments_of(sample), theirs)

    if case.dtype in SHORT and device != CPU and (rounded := exact(torch.float64)) is not None:
        assert_alike(ours, theirs, device)
        try:
            assert_same_or_random(ours, rounded, device, case.tolerance(), again)
            return
        except AssertionError:
            if case.name not in ROUNDED_IN_BETWEEN:
                raise
    try:
        assert_same_or_random(ours, theirs, device, case.tolerance(), again)
    except AssertionError:
        if case.dtype not in SHORT or (rounded := exact(torch.float32)) is None:
            raise
        assert_same(ours, rounded, device, {})


def called(function: FUNCTION, arguments: Any) -> Any:
    seed_all(0)
    return function(arguments[0], *arguments[1], **arguments[2])


@cases()
def test_forward(device: torch.device, case: Case) -> None:
    each_sample(case.samples(), lambda sample: compare(case, case.info.op, device, sample))


@cases()
def test_noncontiguous(device: torch.device, case: Case) -> None:
    def check(sample: SampleInput) -> None:
        strided = on_cpu(lambda: case.noncontiguous(sample))  # there are none of a sparse tensor
        compare(case, case.info.op, device, strided)
        for change in other_strides(case):
            value, args, kwargs = pytree.tree_map_only(
                torch.Tensor,
                lambda tensor: tensor if hasattr(tensor, "stays_on_host") else change(tensor),  # noqa: B023 - called here
                arguments_of(sample),
            )
            with contextlib.suppress(Refused):
                compare(case, case.info.op, device, SampleInput(value, args=args, kwargs=kwargs))

    each_sample(islice(case.samples(), FORM_SAMPLES), check)


def other_strides(case: Case) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Changes of arguments: with an offset into their memory; transposed in memory, which does not depend on the dtype;
    and with repeated elements, or one element alone, where these are not a matrix that nothing is known of."""
    yield shifted
    if case.dtype == torch.float32:
        yield transposed
    if isinstance(case.info, UnaryUfuncInfo) or (
        case.dtype == torch.float32 and isinstance(case.info, (BinaryUfuncInfo, ReductionOpInfo))
    ):
        yield repeated
        yield last


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """By one element, so that it is not aligned."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return tensor
    return tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape).copy_(tensor)


def last(tensor: torch.Tensor) -> torch.Tensor:
    """The last element, without dimensions."""
    is_there = tensor.layout == torch.strided and not tensor.is_nested and tensor.numel()
    return tensor[(-1,) * tensor.dim()] if is_there else tensor


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    is_matrix = tensor.layout == torch.strided and tensor.dim() > 1 and not tensor.is_nested
    return tensor.mT.contiguous().mT if is_matrix else tensor


def repeated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., :1].expand_as(tensor) if tensor.layout == torch.strided and tensor.dim() else tensor


ROWS = (33, 4099)  # more elements than 16 bits count, in rows that are longer than a group of threads
# What computes something of each row beside reductions: the arguments after the tensor.
OF_ROWS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("softmax", "log_softmax", "softmin", "cumsum", "logcumsumexp", "cummax", "cummin"), (-1,)),
    **dict.fromkeys(("sort", "argsort", "msort", "nn.functional.normalize"), ()),
    **dict.fromkeys(("nn.functional.layer_norm", "nn.functional.rms_norm"), (ROWS[1:],)),
    "topk": (5,),
    "kthvalue": (7,),
}


@preferred_cases(lambda case: isinstance(case.info, ReductionOpInfo) or case.name in OF_ROWS)
def test_rows(device: torch.device, case: Case) -> None:
    """Reductions of everything, of long rows, and of columns; and what else looks at a whole row."""
    seed_all(0)
    # All different, so that there is one order; and with a product that stays in the range.
    numbers = (0.542 + torch.randperm(ROWS[0] * ROWS[1]) / (ROWS[0] * ROWS[1])).reshape(ROWS).to(case.dtype)
    if case.name in OF_ROWS:
        samples = [SampleInput(numbers, args=OF_ROWS[case.name])]
    else:
        samples = [SampleInput(numbers, kwargs=kwargs) for kwargs in ({}, {"dim": -1}, {"dim": 0})]
    each_sample(iter(samples), lambda sample: compare(case, case.info.op, device, sample))


@preferred_cases(lambda case: case.elementwise and case.name != "nn.functional.prelu")  # it has a weight per channel
def test_large(device: torch.device, case: Case) -> None:
    """More elements than 16 bits count, and no multiple of anything."""

    def check(sample: SampleInput) -> None:
        shapes = {tensor.shape for tensor in tensors_of(arguments_of(sample))}
        if len(shapes) > 1 or not sample.input.numel():
            raise Refused("its arguments are of different sizes")

        def enlarged(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.flatten().repeat(LARGE // tensor.numel() + 1)[:LARGE]

        value, args, kwargs = pytree.tree_map_only(torch.Tensor, enlarged, arguments_of(sample))
        compare(case, case.info.op, device, SampleInput(value, args=args, kwargs=kwargs))

    each_sample(islice(case.samples(), LARGE_SAMPLES), check)


@cases(lambda case: case.info.inplace_variant is not None)
def test_inplace(device: torch.device, case: Case) -> None:
    def check(sample: SampleInput) -> None:
        if sample.broadcasts_input:
            raise Refused("the input is broadcast")
        compare(case, returning_itself(case.info.inplace_variant), device, sample)
        with contextlib.suppress(Refused):
            strided = on_cpu(lambda: case.noncontiguous(sample))
            compare(case, returning_itself(case.info.inplace_variant), device, strided)

    each_sample(case.samples(), check)


@preferred_cases(lambda case: case.info.inplace_variant is not None)
def test_inplace_forms(device: torch.device, case: Case) -> None:
    """What is changed lies transposed, is also the other argument, or has repeated elements, which most refuse."""
    change = case.info.inplace_variant

    def check(sample: SampleInput) -> None:
        if sample.broadcasts_input:
            raise Refused("the input is broadcast")
        value, args, kwargs = arguments_of(sample)
        compare(case, returning_itself(change), device, SampleInput(transposed(value), args=args, kwargs=kwargs))
        if isinstance(case.info, BinaryUfuncInfo):
            with contextlib.suppress(Refused):
                compare(case, lambda value: change(value, value), device, SampleInput(value))
        for where in (CPU, device):
            written, rest, named = moved((value, args, kwargs), where)
            error = error_of(change, (repeated(written), rest, named))
            if where == CPU:
                expected = error
        assert (error is None) == (expected is None), f"repeated elements: {error!r}, the CPU {expected!r}"

    each_sample(islice(case.samples(), FORM_SAMPLES), check)


def returning_itself(function: FUNCTION) -> FUNCTION:
    """Returns also whether the result is the argument that was changed."""

    def call(value: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = function(value, *args, **kwargs)
        return result, result is value

    return call


@preferred_cases()
def test_channels_last(device: torch.device, case: Case) -> None:
    def check(sample: SampleInput) -> None:
        if not has_images(sample):
            raise Refused("no images or volumes are among the arguments")
        image, args, kwargs = channels_last(arguments_of(sample))
        compare(case, case.info.op, device, SampleInput(image, args=args, kwargs=kwargs))

    each_sample(case.samples(), check)


@preferred_cases()
def test_strides(device: torch.device, case: Case) -> None:
    """Results lie in memory as the CPU's do, for images with channels last too."""

    def check(sample: SampleInput) -> None:
        for arguments in (arguments_of(sample), channels_last(arguments_of(sample))):
            expected = on_cpu(lambda: called(case.info.op, moved(arguments, CPU)))  # noqa: B023 - called here
            actual = called(case.info.op, moved(arguments, device))
            ours, theirs = (
                [tensor.stride() for tensor in tensors_of(result) if tensor.layout == torch.strided]
                for result in (actual, expected)
            )
            assert ours == theirs, f"strides {ours}, the CPU's {theirs}"

    each_sample(islice(case.samples(), FORM_SAMPLES), check)


# out= ----------------------------------------------------------------------------------------------------------------


def right_size(result: torch.Tensor) -> torch.Tensor:
    """In the middle of a memory, of which nothing else may change."""
    memory = torch.ones(result.numel() + 16, dtype=result.dtype, device=result.device)
    return memory.as_strided(result.shape, torch.empty_like(result, device="meta").stride(), 8)


def strided(result: torch.Tensor) -> torch.Tensor:
    """Every second element of another memory."""
    shape = (*result.shape[:-1], result.shape[-1] * 2) if result.dim() else (2,)
    wide = torch.ones(shape, dtype=result.dtype, device=result.device)
    return wide[..., ::2] if result.dim() else wide[0]


def turned(result: torch.Tensor) -> torch.Tensor:
    """Transposed in memory."""
    if result.dim() < 2:
        return right_size(result)
    return torch.ones(result.mT.shape, dtype=result.dtype, device=result.device).mT


def no_elements(result: torch.Tensor) -> torch.Tensor:
    """Has to be resized. Then it lies where other numbers were: an earlier result may have left the right ones."""
    others = [torch.ones_like(result) for _ in range(8)]
    del others
    return torch.empty(0, dtype=result.dtype, device=result.device)


def another_size(result: torch.Tensor) -> torch.Tensor:
    """Has elements, and has to be resized nevertheless, with a warning."""
    return torch.ones(result.numel() + 3, dtype=result.dtype, device=result.device)


OUTPUTS = (right_size, strided, no_elements)
OUTPUTS_OF_FLOAT32 = (*OUTPUTS, turned)  # how `out` lies does not depend on the dtype


@cases(lambda case: case.info.supports_out)
def test_out(device: torch.device, case: Case) -> None:
    def check(sample: SampleInput) -> None:
        if not isinstance(sample.input, torch.Tensor) and not pytree.tree_leaves(sample.input):
            raise Refused("it has no argument")
        for make in OUTPUTS_OF_FLOAT32 if case.dtype == torch.float32 else OUTPUTS:
            compare(case, writing_out(case.info.op, make), device, sample)
        if case.dtype == torch.float32:
            warned: dict[torch.device, bool] = {}
            with contextlib.suppress(Refused):
                compare(case, writing_out(case.info.op, another_size, warned), device, sample)
                assert warned[device] or not warned[CPU], "does not warn that it resizes `out`"

    each_sample(islice(case.samples(), FORM_SAMPLES), check)


def is_far(output: torch.Tensor, value: torch.Tensor) -> bool:
    """By far more than by the order of operations."""
    wide = output.to(torch.complex128), value.to(torch.complex128)
    return not torch.allclose(*wide, rtol=0.01, atol=0.01, equal_nan=True)


def plain(output: torch.Tensor) -> torch.Tensor:
    """Some kernels of the CPU write the conjugates, which the tensor's flag says: here are the numbers themselves."""
    if not output.is_conj():
        return output
    memory = output.conj()
    memory.copy_(output.clone())
    return memory


def writing_out(
    function: FUNCTION, make: Callable[[torch.Tensor], torch.Tensor], warned: dict[torch.device, bool] | None = None
) -> FUNCTION:
    """Returns what the function has written into `out` and around it, how it lies there, and whether that is what it
    returned. In `warned`: whether it says that `out` had another size."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        out = pytree.tree_map_only(torch.Tensor, make, result)
        single = isinstance(out, torch.Tensor)
        outputs = (out,) if single else tuple(out)
        if not all(isinstance(output, torch.Tensor) for output in outputs):
            raise TypeError("a result that is not a tensor has no out=")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            returned = function(*args, **kwargs, out=out if single else outputs)
        if warned is not None:
            warned[outputs[0].device] = any("was resized" in str(warning.message) for warning in said)
        same = [a is b for a, b in zip((returned,) if single else returned, outputs, strict=True)]
        for output, value in zip(outputs, (result,) if single else result, strict=True):
            if output.device == CPU and is_far(output, value):  # some kernels ignore strides, or leave it as it was
                (output if output._base is None else output._base).fill_(1)
                output.copy_(value)
        around = [output._base for output in outputs if output._base is not None]
        outputs = tuple(map(plain, outputs))
        return outputs, around, [output.stride() for output in outputs if output.numel()], same

    return call


@cases(lambda case: case.info.supports_out)
def test_out_errors(device: torch.device, case: Case) -> None:
    """An `out` on another device raises, and so does one of a dtype that the CPU refuses."""

    def check(sample: SampleInput) -> None:
        result = on_cpu(lambda: called(case.info.op, moved(arguments_of(sample), CPU)))
        if not isinstance(result, torch.Tensor) or not tensors_of(arguments_of(sample)):
            raise Refused("it has not one result")
        for dtype in (torch.int64, torch.complex128):
            for where in (CPU, device):
                out = torch.empty_like(result, dtype=dtype, device=where)
                error = error_of(case.info.op, moved(arguments_of(sample), where), out=out)
                if where == CPU:
                    expected = error
            assert (error is None) == (expected is None), f"out of {dtype}: {error!r}, the CPU {expected!r}"
        if device != CPU and result.numel():
            elsewhere = error_of(case.info.op, moved(arguments_of(sample), device), out=torch.empty_like(result))
            assert elsewhere is not None, "writes into an `out` of the CPU"

    each_sample(islice(case.samples(), ERROR_SAMPLES), check)


def error_of(function: FUNCTION, arguments: Any, **more: torch.Tensor) -> Exception | None:
    try:
        result = function(arguments[0], *arguments[1], **arguments[2], **more)
        pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, result)  # an error of a device may come late
    except Exception as error:
        return error
    return None


# Special inputs ------------------------------------------------------------------------------------------------------


@cases(lambda case: isinstance(case.info, BinaryUfuncInfo))
def test_broadcasting(device: torch.device, case: Case) -> None:
    def samples() -> Iterator[SampleInput]:
        seed_all(0)
        yield from generate_elementwise_binary_broadcasting_tensors(case.info, device=CPU, dtype=case.dtype)

    each_sample(samples(), lambda sample: compare(case, case.info.op, device, sample))


PROMOTED = ((torch.int64, torch.float32), (torch.float32, torch.int64), (torch.float16, torch.float32))


@preferred_cases(lambda case: isinstance(case.info, BinaryUfuncInfo))
def test_promotion(device: torch.device, case: Case) -> None:
    """Arguments of two dtypes, and a number in the place of the second."""

    def samples() -> Iterator[SampleInput]:
        numbers = torch.arange(1, 6)
        for left, right in PROMOTED:
            yield SampleInput(numbers.to(left), args=((numbers.flip(0) / 2).to(right),))
        for number in (2, 2.5, True):
            yield SampleInput(numbers, args=(number,))
            yield SampleInput(numbers / 2, args=(number,))

    each_sample(samples(), lambda sample: compare(case, case.info.op, device, sample))


INDEXING = (
    *("gather", "index_add", "index_select", "scatter_add", "take_along_dim", "nn.functional.embedding"),
    *(f"index_reduce.{by}" for by in ("mean", "prod", "amin", "amax")),
    *(f"scatter_reduce.{by}" for by in ("sum", "mean", "prod", "amin", "amax")),
)


def of_indices(case: Case, change: FUNCTION, tensor: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = tensor if tensor.dtype == case.dtype else change(tensor)
    return result


@preferred_cases(lambda case: case.name in INDEXING)
def test_indices(device: torch.device, case: Case) -> None:
    """Indices of 32 bits, and one index many times."""

    def check(sample: SampleInput) -> None:
        value, *rest = arguments_of(sample)
        for change in (torch.Tensor.int, torch.zeros_like):
            args, kwargs = pytree.tree_map_only(torch.Tensor, partial(of_indices, case, change), rest)
            compare(case, case.info.op, device, SampleInput(value, args=args, kwargs=kwargs))

    each_sample(islice(case.samples(), FORM_SAMPLES), check)


def knows_extremal_values(case: Case) -> bool:
    wide = case.dtype.is_floating_point or case.dtype.is_complex
    return wide and isinstance(case.info, (UnaryUfuncInfo, BinaryUfuncInfo)) and case.dtype != torch.complex32


@cases(knows_extremal_values)
def test_extremal(device: torch.device, case: Case) -> None:
    """Infinities, NaN, and the numbers next to the ends of the range."""
    unary = isinstance(case.info, UnaryUfuncInfo)
    generate = (
        generate_elementwise_unary_extremal_value_tensors
        if unary
        else generate_elementwise_binary_extremal_value_tensors
    )

    def samples() -> Iterator[SampleInput]:
        seed_all(0)
        yield from generate(case.info, device=CPU, dtype=case.dtype)  # type: ignore[no-untyped-call]

    each_sample(samples(), lambda sample: compare(case, case.info.op, device, sample))


@cases(lambda case: isinstance(case.info, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)))
def test_empty(device: torch.device, case: Case) -> None:
    """Tensors without elements."""

    def samples() -> Iterator[SampleInput]:
        for shape in ((0,), (2, 0, 3), (0, 4)):
            value = torch.empty(shape, dtype=case.dtype)
            yield SampleInput(value, args=(value.clone(),) if isinstance(case.info, BinaryUfuncInfo) else ())

    each_sample(samples(), lambda sample: compare(case, case.info.op, device, sample))


def has_math_bits(case: Case) -> bool:
    return case.dtype.is_complex and (case.info.test_conjugated_samples or case.info.test_neg_view)


@cases(has_math_bits)
def test_bits(device: torch.device, case: Case) -> None:
    """Arguments that are conjugated or negated lazily."""

    def conjugated(value: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.conj() if t.is_complex() else t, value)

    def negated(value: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: torch._neg_view(t) if t.is_complex() else t, value)

    def check(sample: SampleInput) -> None:
        for change in (conjugated, negated):
            value, args, kwargs = change(arguments_of(sample))
            compare(case, case.info.op, device, SampleInput(value, args=args, kwargs=kwargs))

    each_sample(islice(case.samples(), BITS_SAMPLES), check)


ALL_DTYPES = tuple(dict.fromkeys(dtype for info in op_db for dtype in sorted(info.dtypes, key=str)))


@pytest.mark.parametrize("info", [pytest.param(info, id=full_name(info)) for info in op_db])
def test_dtypes(device: torch.device, info: OpInfo) -> None:
    """The operator works in every dtype, known or not, in which it works on the CPU."""
    missing = [
        dtype for dtype in ALL_DTYPES if works_on(CPU, Case(info, dtype)) and not works_on(device, Case(info, dtype))
    ]
    assert not missing, f"missing: {missing}"


def works_on(device: torch.device, case: Case) -> bool:
    """Whether the first sample runs, in every dtype, known or not."""
    try:
        sample = next(case.samples())
        called(case.info.op, moved(arguments_of(sample), device))
        if device != CPU:
            torch.accelerator.synchronize()
    except Exception:
        return False
    return True


@pytest.mark.parametrize(
    "info",
    [pytest.param(info, id=full_name(info)) for info in op_db if info.error_inputs_func is not None],
)
def test_errors(device: torch.device, info: OpInfo) -> None:
    """Wrong arguments raise what the database says, if they do on the CPU."""
    with outside_of_unittest():
        ours, theirs = ([*info.error_inputs(str(where))] for where in (device, CPU))
    checked = 0
    for number, error in enumerate(ours):
        if not any(raises(info, other.sample_input, other) for other in theirs[number : number + 1]):
            continue
        checked += 1
        assert raises(info, error.sample_input, error), (
            f"error input {number}, {error.sample_input.summary()}: expected {error.error_type.__name__} with "
            f"{error.error_regex!r}, got {outcome(info, error.sample_input)}"
        )
    if not checked:
        pytest.skip("no error input raises on the CPU what the database says")


def outcome(info: OpInfo, sample: SampleInput) -> str:
    try:
        result = called(info.op, arguments_of(sample))
        if isinstance(result, torch.Tensor):
            result.cpu()  # an error of a device may come late
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def raises(info: OpInfo, sample: SampleInput, expected: Any) -> bool:
    try:
        result = called(info.op, arguments_of(sample))
        if isinstance(result, torch.Tensor):
            result.cpu()
    except expected.error_type as error:
        return re.search(expected.error_regex, str(error)) is not None
    except Exception:
        return False
    return False
