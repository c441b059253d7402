"""Arguments that PyTorch's database of operators has beside plain inputs: out=, wrong ones, and those without data.

What the device does with them is what the CPU does. Exceptions are listed with their reasons.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from torch_mtia.conformance.database import CPU, full_name, moved

MOST_SAMPLES = 1  # the first ones are the plain ones; more take minutes
DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool)

# How an argument `out` may differ from what is computed.
OUTS: dict[str, Callable[[torch.Tensor, torch.device], torch.Tensor]] = {
    "fits": lambda result, device: torch.zeros_like(result, device=device),
    "has strides": lambda result, device: torch.zeros(*result.shape, 2, dtype=result.dtype, device=device)[..., 0],
    "is empty": lambda result, device: torch.zeros(0, dtype=result.dtype, device=device),
    "has another shape": lambda result, device: torch.zeros(*result.shape, 1, 2, dtype=result.dtype, device=device),
    "is wider": lambda result, device: torch.zeros(result.shape, dtype=torch.complex128, device=device),
    "is narrower": lambda result, device: torch.zeros(result.shape, dtype=torch.int8, device=device),
}
NOT_OUT = {
    "nansum": "the CPU takes an out argument of any dtype, and fails in the middle for some",
    "nanmean": "made of nansum",
    "triangular_solve": "the CPU leaves an empty result transposed",
    "nonzero": "the database has its result as a tuple",
    "nn.functional.avg_pool3d": "the CPU writes into out as if it were contiguous; tested below",
    "nn.functional.gelu": "the CPU leaves out as it was if it is not contiguous; tested below",
    "narrow_copy": "the CPU writes into out as if it were contiguous; tested below",
}
RANDOM = re.compile("bernoulli|cauchy|geometric|multinomial|normal|rand|uniform|dropout|_lowrank|exponential")
NOT_COMPARED = ("jiterator", "empty", "sparse")
NOT_FAKE = {
    "as_strided.partial_views": "reads memory beyond its argument",
    "tensor_split": "wants an argument on the CPU, on every device",
    "nn.functional.rms_norm": "upstream's meta function keeps the strides of an empty result",
    "nn.functional.max_unpool2d": "upstream's meta function forgets channels-last, on the CPU too",
    "nn.functional.max_unpool2d.grad": "upstream's meta function forgets channels-last, on the CPU too",
    "einsum": "upstream's meta function forgets the order of its operands, on the CPU too",
    "nonzero_static": "upstream's meta function gives an empty result other strides",
}
RAISES_NOTHING = {  # with what upstream expects of them, on the CPU too
    "clamp_max": "an exception that upstream's CPU device does not raise",
    "clamp_min": "an exception that upstream's CPU device does not raise",
    "__rmod__": "an exception of an operand that is no tensor",
    "__rpow__": "an exception of an operand that is no tensor",
    "__rsub__": "an exception of an operand that is no tensor",
}


def rows(infos: list[OpInfo], skipped: dict[str, str]) -> list[Any]:
    def marks(name: str) -> list[Any]:
        return [pytest.mark.skip(reason=skipped[name])] if name in skipped else []

    return [pytest.param(info, marks=marks(full_name(info)), id=full_name(info)) for info in infos]


def dtype_of(info: OpInfo) -> torch.dtype | None:
    return next((dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu")), None)


def is_compared(info: OpInfo) -> bool:
    """Without random numbers, and not one that compiles CUDA code or returns memory as it finds it."""
    name = full_name(info)
    return dtype_of(info) is not None and not RANDOM.search(name) and not name.startswith(NOT_COMPARED)


def call_with_out(info: OpInfo, sample: Any, make: str, device: torch.device) -> Any:
    """The results, whether they kept their memory, and their strides; or the type of the exception."""
    inputs, args, kwargs = moved(
        pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (sample.input, sample.args, sample.kwargs)), device
    )
    expected = info.op(inputs, *args, **kwargs)
    leaves = pytree.tree_leaves(expected)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    outs = [OUTS[make](leaf, device) for leaf in leaves]
    pointers = [out.data_ptr() for out in outs]
    try:
        info.op(inputs, *args, **kwargs, out=outs[0] if isinstance(expected, torch.Tensor) else tuple(outs))
        if device.type == "mtia":
            torch.mtia.synchronize()
    except (RuntimeError, TypeError, IndexError) as error:
        return type(error)
    return [(out.cpu(), out.data_ptr() == pointer, out.stride()) for out, pointer in zip(outs, pointers, strict=True)]


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", rows([i for i in op_db if i.supports_out and is_compared(i)], NOT_OUT))
def test_out_is_treated_as_on_the_cpu(device: torch.device, info: OpInfo) -> None:
    dtype = dtype_of(info)
    for sample in islice(info.sample_inputs("cpu", dtype), MOST_SAMPLES):
        for make in OUTS:
            expected = call_with_out(info, sample, make, CPU)
            actual = call_with_out(info, sample, make, device)
            if isinstance(expected, type) and isinstance(actual, type):
                continue  # which exception it is differs where the device checks first what the CPU finds later
            torch.testing.assert_close(
                actual, expected, equal_nan=True, msg=functools.partial("out {}: {}".format, make)
            )


def keep_busy(device: torch.device) -> None:
    """What is called next finds work before it in the queue."""
    torch.zeros(2**20, device=device).add_(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", rows([i for i in op_db if i.error_inputs_func is not None], RAISES_NOTHING))
def test_wrong_arguments_raise_at_the_call(device: torch.device, info: OpInfo) -> None:
    for wrong in info.error_inputs(str(device)):
        sample = wrong.sample_input
        keep_busy(device)
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            info.op(sample.input, *sample.args, **sample.kwargs)
    if device.type == "mtia":
        torch.mtia.synchronize()  # nothing is left


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "info",
    [
        pytest.param(info, id=info.formatted_name)
        for info in module_db
        if info.module_error_inputs_func is not None and "BatchNorm" not in info.name  # upstream's raises nothing
    ],
)
def test_wrong_arguments_of_modules_raise_at_the_call(device: torch.device, info: ModuleInfo) -> None:
    errors = info.module_error_inputs_func(
        info, device=str(device), dtype=torch.float32, requires_grad=False, training=True
    )

    def make_and_call(constructor: Any, forward: Any) -> None:
        module = info.module_cls(*constructor.args, **constructor.kwargs).to(device)
        module(*forward.args, **forward.kwargs)

    for wrong in errors:
        inputs = wrong.module_error_input
        keep_busy(device)
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            make_and_call(inputs.constructor_input, inputs.forward_input)
    if device.type == "mtia":
        torch.mtia.synchronize()  # nothing is left


# How a tensor among the arguments is made wrong.
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "is shorter": lambda x: x[:-1] if x.dim() else x,
    "is narrower": lambda x: x[..., :-1] if x.dim() else x,
    "is wider": lambda x: torch.cat([x, x[..., :1]], -1) if x.dim() else x,
    "has fewer dimensions": lambda x: x[0] if x.dim() and x.shape[0] else x,
    "has more dimensions": lambda x: x.unsqueeze(0),
    "is empty": lambda x: x.reshape(-1)[:0],
    "is int64": torch.Tensor.long,
    "is int32": torch.Tensor.int,
    "is float64": torch.Tensor.double,
    "is float16": torch.Tensor.half,
    "is bool": torch.Tensor.bool,
}
# What only the data shows: an index that a smaller tensor does not have, no weight to draw by.
OF_DATA = re.compile(r"out of (range|bounds)|not in the valid range|storage of size|sum of probabilities")


def error_left_behind() -> str:
    try:
        torch.accelerator.synchronize()
    except (RuntimeError, IndexError) as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "info",
    [
        pytest.param(info, id=full_name(info), marks=[pytest.mark.wide] if i % 20 else [])
        for i, info in enumerate(i for i in op_db if is_compared(i))
    ],
)
def test_a_changed_argument_raises_at_the_call_or_not_at_all(device: torch.device, info: OpInfo) -> None:
    for sample in islice(info.sample_inputs("cpu", dtype_of(info)), 4):
        leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
                continue
            for name, change in CHANGES.items():
                changed = [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in leaves]
                changed[i] = change(changed[i]).clone()
                inputs, args, kwargs = moved(pytree.tree_unflatten(changed, structure), device)
                keep_busy(device)
                with contextlib.suppress(Exception):  # at the call
                    info.op(inputs, *args, **kwargs)
                left = error_left_behind()
                assert not left or OF_DATA.search(left), f"tensor {i} {name}: {left}"


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("info", rows([i for i in op_db if is_compared(i)], NOT_FAKE))
def test_shapes_and_strides_are_those_of_the_meta_functions(device: torch.device, info: OpInfo) -> None:
    """torch.compile and torch.export rely on it."""
    for sample in islice(info.sample_inputs("cpu", dtype_of(info)), MOST_SAMPLES):
        inputs, args, kwargs = moved((sample.input, sample.args, sample.kwargs), device)
        try:
            mode = FakeTensorMode()
            fake = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (inputs, args, kwargs))
            with mode:
                expected = info.op(fake[0], *fake[1], **fake[2])
        except (DataDependentOutputException, DynamicOutputShapeException, NotImplementedError):
            continue  # has no meta function
        actual = info.op(inputs, *args, **kwargs)
        for result, meta in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
            if isinstance(result, torch.Tensor):
                assert (result.shape, result.stride(), result.dtype) == (meta.shape, meta.stride(), meta.dtype)
                assert result.device == meta.device


# What is wrong shows in the arguments, or in how many elements a mask takes, so it is not left to the stream.
WRONG_WRITES: dict[str, Callable[[torch.device], object]] = {
    "indices do not fit each other": lambda d: torch.zeros(5, 5, device=d).__setitem__(([0, 1], [0, 1, 2]), 0),
    "values do not fit the indices": lambda d: torch.zeros(5, device=d).__setitem__([0, 1], torch.ones(3, device=d)),
    "values do not fit between slices": lambda d: torch.zeros(2, 3, 4, 5, device=d).__setitem__(
        (slice(None), [0, 1], [[1], [2]]), torch.ones(2, 3, 5, device=d)
    ),
    "values do not fit separate indices": lambda d: torch.zeros(2, 3, 4, device=d).__setitem__(
        ([0, 1], slice(None), [0, 1]), torch.ones(3, 2, device=d)
    ),
    "values do not fit the mask": lambda d: torch.arange(4, device=d).__setitem__(
        torch.arange(4, device=d) > 0, torch.ones(2, device=d, dtype=torch.int64)
    ),
    "values do not fit, and have another dtype": lambda d: torch.arange(4, device=d).__setitem__(
        torch.arange(4, device=d) > 0, torch.ones(2, device=d)
    ),
    "values have another dtype": lambda d: torch.zeros(4, device=d).__setitem__([0], torch.ones(1, device=d).int()),
    "a value of no dimension without indices": lambda d: torch.ones((), device=d).index_put(
        [], torch.ones(1, device=d), accumulate=True
    ),
    "mm to expanded memory": lambda d: torch.mm(
        x := torch.ones(3, 3, device=d), x, out=torch.ones(3, device=d).expand(3, 3)
    ),
    "addmm to expanded memory": lambda d: torch.addmm(
        x := torch.ones(3, 3, device=d), x, x, out=torch.ones(3, device=d).expand(3, 3)
    ),
    "addmv to expanded memory": lambda d: torch.addmv(
        x := torch.ones(3, device=d), torch.ones(3, 3, device=d), x, out=torch.ones(1, device=d).expand(3)
    ),
    "index_put_ of its own memory": lambda d: (x := torch.ones(6, device=d)).index_put_(
        (torch.tensor([2, 1], device=d),), x[:2]
    ),
    "index_put_ at its own memory": lambda d: (i := torch.tensor([2, 1, 0], device=d)).index_put_((i,), i.clone()),
    "index_fill_ at its own memory": lambda d: (i := torch.tensor([2, 1, 0], device=d)).index_fill_(0, i, 0),
    "index_fill_ of a complex number": lambda d: torch.ones(2, device=d).index_fill_(
        0, torch.tensor([0], device=d), 1j
    ),
    "masked_scatter_ of expanded memory": lambda d: (
        torch.ones(1, device=d)
        .expand(6)
        .masked_scatter_(torch.ones(6, dtype=torch.bool, device=d), torch.ones(6, device=d))
    ),
    "put_ of its own memory": lambda d: (x := torch.ones(6, device=d)).put_(torch.tensor([2, 1], device=d), x[:2]),
    "put_ at its own memory": lambda d: (i := torch.tensor([2, 1, 0], device=d)).put_(i, i.clone()),
    "logspace to expanded memory": lambda d: torch.logspace(1, 10, 10, out=torch.ones(1, device=d).expand(10)),
}


@pytest.mark.parametrize("case", WRONG_WRITES)
def test_wrong_writes_raise_at_the_call(device: torch.device, case: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as expected:
        WRONG_WRITES[case](CPU)
    with pytest.raises(expected.type, match=re.escape(str(expected.value)[:60])):
        WRONG_WRITES[case](device)
    torch.accelerator.synchronize()  # and nothing is left to the stream


def test_a_mask_that_does_not_fit_raises_at_the_call(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        torch.zeros(3, device=device).masked_scatter_(
            torch.ones(2, 3, dtype=torch.bool, device=device), torch.ones(6, device=device)
        )


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: x.index_fill_(0, i, 1.0),
        lambda x, i: x.index_put_((i,), torch.ones(3, device=x.device)),
        lambda x, i: x.masked_fill_(i > 0, 1.0),
    ],
    ids=["index_fill_", "index_put_", "masked_fill_"],
)
def test_writes_to_expanded_memory_warn(device: torch.device, write: Callable[..., object]) -> None:
    with pytest.warns(UserWarning, match="on expanded tensors is deprecated"):
        write(torch.zeros(1, device=device).expand(3), torch.tensor([2, 1, 0], device=device))


@pytest.mark.parametrize(
    "x", [((2, 3, 4), ([0, 1], slice(None), [0, 1]), (2, 3)), ((4, 5), ([0, 1],), (1, 5))], ids=str
)
def test_values_that_fit_are_broadcast(device: torch.device, x: tuple[Any, Any, Any]) -> None:
    shape, index, values = x
    results = []
    for where in (CPU, device):
        tensor = torch.zeros(shape, device=where)
        tensor[index] = torch.arange(1.0, 1 + torch.Size(values).numel(), device=where).view(values)
        results.append(tensor.cpu())
    assert torch.equal(*results)


def test_a_deterministic_call_stays_so_when_the_mode_changes_after_it(device: torch.device) -> None:
    """ATen's kernels ask for the mode, a flag of the process, when they run."""
    index = torch.arange(2000).repeat(20).to(device)
    source = torch.arange(40000.0, device=device)[:, None].expand(40000, 12).contiguous()
    torch.use_deterministic_algorithms(True)
    try:
        result = torch.zeros(2000, 12, device=device).index_copy(0, index, source)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(result, source[-2000:])


def test_what_is_not_deterministic_raises_at_the_call(device: torch.device) -> None:
    output, indices = torch.nn.functional.max_pool2d(torch.ones(1, 1, 4, 4, device=device), 2, return_indices=True)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            torch.nn.functional.max_unpool2d(output, indices, [2])
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_largest_number_without_sign(device: torch.device) -> None:
    assert torch.full((3,), 2**64 - 1, dtype=torch.uint64, device=device).tolist() == [2**64 - 1] * 3


def test_a_number_among_elements(device: torch.device) -> None:
    assert torch.isin(5, torch.tensor([[1, 5], [7, 9]], device=device)).item() is True


# The CPU has none of integers; CUDA has.
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_histograms_of_integers(device: torch.device, dtype: torch.dtype) -> None:
    numbers = torch.tensor([[0, 3, 7], [9, 7, 4], [1, 1, 100]], dtype=dtype)
    x = numbers.to(device)
    assert torch.histc(x, 8, 0, 7).tolist() == torch.histc(numbers.float(), 8, 0, 7).tolist()
    assert torch.histc(x.t()[::2], 4).tolist() == torch.histc(numbers.t()[::2].float(), 4).tolist()  # all of the data
    assert torch.histc(x[0, :1], 3).tolist() == [0, 1, 0]
    largest, least = torch.iinfo(dtype).max, torch.iinfo(dtype).min
    assert torch.histc(torch.tensor([least, largest, largest], device=device, dtype=dtype), 100).sum() == 3
    out = torch.zeros(16, dtype=dtype, device=device)
    torch.histc(x, 8, 0, 7, out=out[::2])
    assert out[::2].tolist() == [1, 2, 0, 1, 1, 0, 0, 2]
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.histc(x, 8, 0, 1e30)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.histc(x, 4, 0, 7, out=out[:1].expand(4))


def test_a_volume_is_pooled_into_memory_with_strides(device: torch.device) -> None:
    x = torch.rand(1, 2, 4, 4, 4, device=device)
    out = torch.zeros(1, 2, 2, 2, 4, device=device)[..., ::2]
    torch.ops.aten.avg_pool3d.out(x, [2, 2, 2], out=out)
    assert torch.equal(out, torch.nn.functional.avg_pool3d(x, 2))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dims", [2, 3])
def test_padding_keeps_channels_last(dims: int, mode: str, device: torch.device) -> None:
    x = torch.randn(2, 3, *(4, 5, 6)[:dims])
    x = x.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    padding = (1, 2, 2, 0, 1, 1)[: 2 * dims]
    results = []
    for leaf in (x.clone().requires_grad_(), x.to(device).requires_grad_()):
        padded = torch.nn.functional.pad(leaf, padding, mode=mode)
        (padded * torch.arange(padded.numel(), device=leaf.device).view_as(padded)).sum().backward()
        results.append((padded, leaf.grad))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu(), expected)
        assert actual.stride() == expected.stride()


def test_gelu_into_memory_with_strides(device: torch.device) -> None:
    x, gradient = torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)
    out, back = (torch.zeros(3, 8, device=device)[:, ::2] for _ in range(2))
    torch.ops.aten.gelu.out(x, out=out)
    torch.ops.aten.gelu_backward.grad_input(gradient, x, grad_input=back)
    torch.testing.assert_close(out, torch.nn.functional.gelu(x))
    torch.testing.assert_close(back, torch.ops.aten.gelu_backward(gradient, x))


@pytest.mark.parametrize("dims", [(0,), (2,), (0, 2), (2, 1), (1, 0, 2)], ids=str)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"])
def test_a_transform_lies_as_on_the_cpu(device: torch.device, name: str, dims: tuple[int, ...]) -> None:
    transform = getattr(torch.fft, name)
    dtype = torch.float64 if name in ("rfftn", "ihfftn") else torch.complex128
    x = torch.randn(6, 4, 5, dtype=dtype).permute(2, 0, 1)
    expected, actual = transform(x, dim=dims), transform(x.to(device), dim=dims)
    torch.testing.assert_close(actual.cpu(), expected)
    assert actual.stride() == expected.stride()


def test_flip_keeps_the_order_of_dimensions(device: torch.device) -> None:
    x = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    flipped = x.to(device).flip(2)
    assert flipped.stride() == x.flip(2).stride()
    assert torch.equal(flipped.cpu(), x.flip(2))


@pytest.mark.parametrize(
    "solve",
    [torch.linalg.cholesky_ex, torch.linalg.inv_ex, torch.linalg.lu_factor_ex],
    ids=lambda function: function.__name__,
)
def test_errors_that_are_to_be_checked_raise_at_the_call(device: torch.device, solve: Callable[..., object]) -> None:
    with pytest.raises(RuntimeError) as raised:
        solve(torch.zeros(3, 3), check_errors=True)
    with pytest.raises(RuntimeError, match=re.escape(str(raised.value))):
        solve(torch.zeros(3, 3, device=device), check_errors=True)


# With the only index that a dimension of one has.
INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gather": lambda x, index: x.gather(1, index),
    "scatter": lambda x, index: x.scatter(1, index, 2.0),
    "scatter of a tensor": lambda x, index: x.scatter(1, index, 2 * x),
    "scatter_add": lambda x, index: x.scatter_add(1, index, x),
    "scatter_reduce": lambda x, index: x.scatter_reduce(1, index, x, "prod"),
    "index_select": lambda x, index: x.index_select(1, index[0]),
    "index_add": lambda x, index: x.index_add(1, index[0], x),
    "index_reduce": lambda x, index: x.index_reduce(1, index[0], x, "prod"),
    "index": lambda x, index: x[:, index[0]],
    "index_put": lambda x, index: x.index_put((index[0],), x[0]),
    "embedding": lambda x, index: torch.nn.functional.embedding(index, x[:1]),
    "embedding_renorm": lambda x, index: torch.nn.functional.embedding(index, x[:1].clone(), max_norm=0.5),
    "embedding_bag": lambda x, index: torch.nn.functional.embedding_bag(index, x[:1]),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", INDEXED)
def test_the_index_of_a_dimension_of_one(device: torch.device, name: str, dtype: torch.dtype) -> None:
    x = torch.arange(1.0, 5.0).view(4, 1)
    index = torch.zeros(4, 1, dtype=dtype)
    expected = INDEXED[name](x, index)
    assert torch.equal(INDEXED[name](x.to(device), index.to(device)).cpu(), expected)


@pytest.mark.parametrize("multiply", [torch.mm, torch.matmul], ids=["mm", "matmul"])
def test_products_of_two_dtypes_raise_at_the_call(device: torch.device, multiply: Callable[..., object]) -> None:
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        multiply(torch.ones(2, 3, device=device), torch.ones(3, 2, dtype=torch.int16, device=device))


@pytest.mark.parametrize("sizes", [(3, 0), (0, 3)], ids=str)
@pytest.mark.parametrize("bias", [(1,), ()], ids=str)
def test_an_empty_matrix_gives_a_vector_of_its_rows(
    device: torch.device, bias: tuple[int, ...], sizes: tuple[int, int]
) -> None:
    arguments = torch.ones(bias), torch.ones(sizes), torch.ones(sizes[1])
    result = torch.addmv(*(argument.to(device) for argument in arguments), beta=3)
    assert torch.equal(result.cpu(), torch.full((sizes[0],), 3.0))


def test_masks_that_take_more_than_there_is_raise_at_the_call(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="Number of elements of source < number of ones in mask"):
        torch.zeros(2, 3, device=device).masked_scatter_(
            torch.tensor([True, True, False], device=device), torch.ones(3, device=device)
        )


@pytest.mark.parametrize("dim", [-1, 2, 40])
def test_transforms_along_dimensions_that_are_not_there_raise(device: torch.device, dim: int) -> None:
    """The CPU's kernels do not look at them."""
    real, numbers = torch.rand(4, 4, device=device), torch.rand(4, 4, dtype=torch.complex64, device=device)
    transforms: tuple[Callable[[], object], ...] = (
        lambda: torch.ops.aten._fft_r2c(real, [dim], 0, True),
        lambda: torch.ops.aten._fft_c2r(numbers, [dim], 0, 6),
        lambda: torch.ops.aten._fft_c2c(numbers, [dim], 0, True),
    )
    for transform in transforms:
        with pytest.raises(IndexError, match="Dimension out of range"):
            transform()


def test_transforms_along_one_dimension_twice_raise(device: torch.device) -> None:
    """The CPU's kernels do not look at them, and write past the end of a list of as many dimensions as there are."""
    real, numbers = torch.rand(4, 4, device=device), torch.rand(4, 4, dtype=torch.complex64, device=device)
    dims = [0, 0, 1, 1, 0, 0, 0, 0]
    transforms: tuple[Callable[[], object], ...] = (
        lambda: torch.ops.aten._fft_r2c(real, dims, 0, True),
        lambda: torch.ops.aten._fft_c2r(numbers, dims, 0, 6),
        lambda: torch.ops.aten._fft_c2c(numbers, dims, 0, True),
    )
    for transform in transforms:
        with pytest.raises(RuntimeError, match="FFT dims must be unique"):
            transform()


def test_the_kth_of_no_values_raises_what_it_raises_on_the_cpu(device: torch.device) -> None:
    for each in (device, torch.device("cpu")):
        with pytest.raises(IndexError, match="Expected reduction dim 1 to have non-zero size"):
            torch.ones(2, 0, device=each).kthvalue(1)


def test_gradients_of_distances_between_rows_of_two_lengths_raise(device: torch.device) -> None:
    x, y, distances = (torch.rand(3, columns, device=device) for columns in (5, 4, 3))
    with pytest.raises(RuntimeError, match="same number of columns"):
        torch.ops.aten._cdist_backward(distances, x, y, 1.0, distances)


@pytest.mark.parametrize("multiply", [torch.dot, torch.vdot])
@pytest.mark.parametrize("conjugate", [(False, False), (False, True), (True, False), (True, True)])
def test_products_of_conjugate_vectors(
    device: torch.device, multiply: Callable[..., torch.Tensor], conjugate: tuple[bool, bool]
) -> None:
    vectors = torch.tensor([1 + 2j, 3 - 1j]), torch.tensor([2 - 1j, 1 + 1j])
    here, there = (
        multiply(*(v.to(where).conj() if lazily else v.to(where) for v, lazily in zip(vectors, conjugate, strict=True)))
        for where in (device, torch.device("cpu"))
    )
    assert torch.equal(here.cpu(), there.resolve_conj())


def test_a_narrow_copy_into_memory_with_strides(device: torch.device) -> None:
    """The CPU's kernel writes as if it were contiguous."""
    x = torch.arange(24.0, device=device).view(4, 6)
    out = torch.zeros(4, 6, device=device)[:, ::2]
    assert torch.narrow_copy(x, 1, 2, 3, out=out) is out
    assert torch.equal(out.cpu(), x.cpu()[:, 2:5])
    with pytest.raises(RuntimeError, match="dtype"):
        torch.narrow_copy(x, 1, 2, 3, out=torch.empty(0, dtype=torch.int64, device=device))


OVERLAPPING: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "addmm": lambda x, out, _: torch.addmm(x, x.clone(), x.clone(), out=out),
    "addmv": lambda x, out, _: torch.addmv(x[1], x.clone(), x[1].clone(), out=out.view(-1)[1:4]),
    "bernoulli": lambda x, out, _: torch.bernoulli(x, out=out),
    "cumprod": lambda x, out, _: torch.cumprod(x, 0, out=out),
    "cumsum": lambda x, out, _: torch.cumsum(x, 0, out=out),
    "index_add": lambda x, out, index: torch.index_add(x, 0, index, x.clone(), out=out),
    "index_copy": lambda x, out, index: torch.index_copy(x, 0, index, x.clone(), out=out),
    "index_put_": lambda x, out, index: out.index_put_((index,), x, accumulate=True),
    "logcumsumexp": lambda x, out, _: torch.logcumsumexp(x, 0, out=out),
    "mode": lambda x, out, _: torch.mode(x, 0, True, out=(out[:1], torch.empty_like(out[:1], dtype=torch.int64))),
    "normal": lambda x, out, _: torch.normal(x, torch.ones_like(x), out=out),
    "put_": lambda x, out, index: out.put_(index, x[1], accumulate=True),
    "renorm": lambda x, out, _: torch.renorm(x, 2, 0, 1, out=out),
    "scatter": lambda x, out, index: torch.scatter(x, 0, index[:, None], 1, out=out),
    "sort": lambda x, out, _: torch.sort(x, out=(out, torch.empty_like(out, dtype=torch.int64))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_an_output_that_shares_a_part_of_an_input_is_refused_as_on_the_cpu(
    device: torch.device, name: str, dtype: torch.dtype
) -> None:
    for where in ("cpu", device):
        memory = torch.zeros(13, dtype=dtype, device=where)
        x, out = memory[:9].view(3, 3), memory[3:12].view(3, 3)
        index = torch.tensor([0, 1, 2], device=where)
        with pytest.raises(RuntimeError, match="unsupported operation: some elements of the input tensor"):
            OVERLAPPING[name](x, out, index)
    assert not memory.any()  # the CPU has drawn numbers by then
