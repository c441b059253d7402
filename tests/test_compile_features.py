"""Features of torch.compile take effect on mtia: generated code or counters say so, not only results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch._dynamo.utils import counters
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation
from torch._higher_order_ops.while_loop import while_loop
from torch._inductor import config as inductor_config
from torch._inductor import lowering
from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.compiled import generated, kernels

Tensor = torch.Tensor


def on_device(*shape: int, **options: Any) -> Tensor:
    return torch.randn(shape).to("mtia", **options)


# Control flow ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign: int) -> None:
    x = (sign * torch.rand(5, 6)).to("mtia").requires_grad_()
    result, code = generated(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), x, fullgraph=True)
    result.sum().backward()
    torch.testing.assert_close(result, x.sin() if sign > 0 else x.cos())
    torch.testing.assert_close(x.grad, x.cos() if sign > 0 else -x.sin())
    assert "if buf" in code


def test_conditions_keep_their_order() -> None:
    def function(x: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cond(p, torch.sin, torch.cos, (x,)), torch.cond(q, torch.exp, torch.tanh, (x,))

    x, yes = on_device(10), torch.tensor(True).to("mtia")
    result, code = generated(function, x, yes, ~yes, fullgraph=True)
    torch.testing.assert_close(result, (x.sin(), x.tanh()))
    assert code.index("arg0_1.item()") < code.index("arg2_1.item()")


def test_while_loop() -> None:
    def function(x: Tensor) -> Tensor:
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 2), (start, x))[1]  # type: ignore[no-any-return]

    x = on_device(10)
    result, code = generated(function, x, fullgraph=True)
    assert torch.equal(result, x * 8)
    assert re.search(r"^ *while ", code, re.MULTILINE)


@pytest.mark.wide
def test_scan() -> None:
    def function(x: Tensor) -> Tensor:
        start = torch.zeros(x.shape[1], device=x.device)
        return scan(lambda carry, row: (carry + row, carry * row), start, x)[1]  # type: ignore[no-any-return]

    x = on_device(4, 5)
    torch.testing.assert_close(generated(function, x, fullgraph=True)[0], function(x))


def test_associative_scan_is_a_scan_of_triton() -> None:
    x = on_device(10, 20)
    result, code = generated(lambda x: associative_scan(torch.add, x, 0, combine_mode="pointwise"), x, fullgraph=True)
    torch.testing.assert_close(result, x.cumsum(0))
    assert "tl.associative_scan" in code


# Attention and matrix products ----------------------------------------------------------------------------------------


@pytest.mark.wide
def test_flex_attention_and_its_gradients() -> None:
    mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 128, 128, device="mtia")
    q, k, v = operands = tuple(on_device(1, 2, 128, 16).requires_grad_() for _ in range(3))
    result, code = generated(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), q, k, v, fullgraph=True)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = on_device(1, 2, 128, 16)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    expected_gradients = torch.autograd.grad(expected, operands, gradient)
    torch.testing.assert_close(
        torch.autograd.grad(result, operands, gradient), expected_gradients, rtol=1e-3, atol=1e-3
    )
    assert "triton_tem_fused_flex_attention" in code


def test_flex_attention_of_one_query_divides_the_keys() -> None:
    query, key, value = on_device(1, 1, 1, 16), on_device(1, 1, 256, 16), on_device(1, 1, 256, 16)
    with fresh_cache():  # other tests compile it for other numbers of processors
        result, code = generated(flex_attention, query, key, value, fullgraph=True)
    torch.testing.assert_close(result, F.scaled_dot_product_attention(query, key, value), rtol=1e-4, atol=1e-4)
    parts = re.search(r"SPLIT_KV : tl.constexpr = (\d+)$", code, re.MULTILINE)
    assert parts is not None
    assert int(parts[1]) > 1


@pytest.mark.parametrize("operator", [torch.mm, torch.bmm])
def test_products_with_a_wider_result(operator: Any) -> None:
    shape = (2, 10, 20) if operator is torch.bmm else (10, 20)
    a = on_device(*shape, dtype=torch.bfloat16)
    b = a.transpose(-1, -2).contiguous()
    result, _ = generated(lambda a, b: operator(a, b, out_dtype=torch.float32), a, b)
    torch.testing.assert_close(result, operator(a.float(), b.float()))


def test_templates_take_part_in_autotuning_and_fuse_what_follows() -> None:
    a, b, bias = on_device(64, 64), on_device(64, 64), on_device(64)
    options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "benchmark_epilogue_fusion": False}
    result, code = generated(lambda a, b, bias: F.relu(torch.addmm(bias, a, b)) * 3, a, b, bias, options=options)
    torch.testing.assert_close(result, F.relu(torch.addmm(bias, a, b)) * 3, rtol=1e-4, atol=1e-4)
    assert [name for name in kernels(code) if "relu" in name and name.startswith("triton_tem_")]
    assert "extern_kernels.addmm" not in code


def test_atomic_additions_are_left_to_the_operators_own_kernel() -> None:
    x, index, y = on_device(30, 40), torch.randint(0, 30, (50,)).to("mtia"), on_device(50, 40)
    result, code = generated(lambda x, i, y: torch.index_add(x, 0, i, y), x, index, y)
    torch.testing.assert_close(result, torch.index_add(x, 0, index, y))
    assert "aten.index_add" in code
    assert "tl.atomic_add" not in code


# Kernels of the program, and custom operators -------------------------------------------------------------------------

SCALE: tl.constexpr = tl.constexpr(3)


@triton.jit
def scaled(x):
    return x * SCALE


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["size"])
@triton.jit
def scale_kernel(x, out, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(out + offsets, scaled(tl.load(x + offsets, mask)), mask)


def test_a_triton_kernel_of_the_program() -> None:
    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out.sin()

    x = on_device(100)
    result, code = generated(function, x, fullgraph=True)
    torch.testing.assert_close(result, (3 * x).sin())
    assert "scale_kernel" in code
    assert "def scaled" in code


@triton.autotune(
    [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})],
    key=["size"],
    restore_value=["x"],
    reset_to_zero=["z"],
)
@triton.heuristics({"EVEN": lambda named: named["size"] % named["BLOCK"] == 0})
@triton.jit
def counting_kernel(x, z, size, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(x + offsets, tl.load(x + offsets, mask) + 1, mask)
    if EVEN:
        tl.store(z + offsets, tl.load(z + offsets) + 1)
    else:
        tl.store(z + offsets, tl.load(z + offsets, mask) + 1, mask)


@pytest.mark.parametrize("options", [{}, {"num_warps": 2}], ids=str)
def test_measurements_leave_no_trace_in_what_is_restored(options: dict[str, int]) -> None:
    """Also where the autotuner stands over heuristics, and is called with what configurations say."""

    def function(x: Tensor, z: Tensor) -> Tensor:
        y = x * 2
        size = y.numel()
        counting_kernel[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](y, z, size, **options)
        return y

    x, z = on_device(300), torch.zeros(300, device="mtia")
    compiled = torch.compile(function, fullgraph=True)
    with fresh_cache():
        for _ in range(2):
            z.zero_()
            torch.testing.assert_close(compiled(x, z), x * 2 + 1)
            torch.testing.assert_close(z, torch.ones_like(z))


@torch.library.custom_op("torch_mtia_tests::sine_times", mutates_args=())
def sine_times(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() * y


sine_times.register_fake(lambda x, _y: torch.empty_like(x))


@torch.library.custom_op("torch_mtia_tests::increment", mutates_args=("x",))
def increment(x: Tensor) -> None:
    x.add_(1)


def test_custom_operators() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = sine_times(x * 2, y) * 2
        increment(result)
        return result

    x, y = on_device(5), on_device(5)
    result, code = generated(function, x, y, fullgraph=True)
    torch.testing.assert_close(result, (x * 2).sin() * y * 2 + 1)
    assert "torch.ops.torch_mtia_tests.sine_times" in code
    assert "torch.ops.torch_mtia_tests.increment" in code


def test_a_custom_operator_of_any_size_is_compiled_once() -> None:
    compiled = torch.compile(lambda x, y: sine_times(x * 2, y).sum(0), dynamic=True)
    counters.clear()
    for rows in (3, 5, 9):
        x, y = on_device(rows, 4), on_device(rows, 4)
        torch.testing.assert_close(compiled(x, y), ((x * 2).sin() * y).sum(0))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.fixture
def operators_with_out() -> Iterator[Any]:
    with torch.library._scoped_library("torch_mtia_tests_out", "FRAGMENT") as library:
        library.define("next(Tensor x) -> Tensor")
        library.define("next.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", tags=(torch.Tag.out,))
        library.impl("next", lambda x: x + 1, "CompositeExplicitAutograd")
        library.impl("next.out", lambda x, *, out: out.copy_(x + 1), "CompositeExplicitAutograd")
        torch.library.register_fake("torch_mtia_tests_out::next", lambda x: torch.empty_like(x), lib=library)
        library.define("both(Tensor x) -> (Tensor, Tensor)")
        library.define(
            "both.out(Tensor x, *, Tensor(a!) one, Tensor(b!) two) -> (Tensor(a!), Tensor(b!))", tags=(torch.Tag.out,)
        )
        library.impl("both", lambda x: (x + 1, x + 2), "CompositeExplicitAutograd")
        library.impl(
            "both.out", lambda x, *, one, two: (one.copy_(x + 1), two.copy_(x + 2)), "CompositeExplicitAutograd"
        )
        torch.library.register_fake(
            "torch_mtia_tests_out::both", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=library
        )
        yield torch.ops.torch_mtia_tests_out


def test_the_out_variant_of_a_custom_operator_writes_into_a_planned_buffer(operators_with_out: Any) -> None:
    x = on_device(5)
    result, code = generated(lambda x: operators_with_out.next(x * 2) * 3, x)
    torch.testing.assert_close(result, (x * 2 + 1) * 3)
    assert "torch.ops.torch_mtia_tests_out.next.out(buf0, out=buf1)" in code


def test_the_out_variant_of_a_custom_operator_with_several_outputs(operators_with_out: Any) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        one, two = operators_with_out.both(x * 2)
        return one * 3, two * 5

    x = on_device(5)
    result, code = generated(function, x)
    torch.testing.assert_close(result, function(x))
    assert re.search(r"torch_mtia_tests_out\.both\.out\(buf0, one=buf\d, two=buf\d\)", code)
    assert re.search(r"= buf\d; del buf\d  # reuse", code)


def test_overloads_are_looked_for_while_a_program_is_traced() -> None:
    """Those that do not fit are refused with a message that prints their arguments."""
    x, index = on_device(2, 3), torch.tensor([[0]]).to("mtia")
    function = lambda x, index: torch.ops.aten.scatter(x, -1, index, x + 1)  # noqa: E731
    result, _ = generated(function, x, index)
    assert torch.equal(result, function(x, index))  # type: ignore[no-untyped-call]


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.unwatched("leaves a tensor, and expects the error of the stream")
def test_an_index_out_of_range_raises_and_the_device_goes_on() -> None:
    function = torch.compile(lambda x, i: x[i] + 1)
    x = on_device(10)
    function(x, torch.tensor([3, 50]).to("mtia"))
    with pytest.raises(
        RuntimeError, match=r"triton_poi_fused_\w*index\w*: device assertion failed: index out of bounds"
    ):
        torch.mtia.synchronize()
    index = torch.tensor([3, 5]).to("mtia")
    assert torch.equal(function(x, index), x[index] + 1)


def test_checks_for_nan_raise() -> None:
    function = torch.compile(torch.log, options={"nan_asserts": True})
    function(torch.ones(16, device="mtia"))
    with pytest.raises(AssertionError):
        function(-torch.ones(16, device="mtia"))


def test_checks_for_nan_in_kernels_raise_for_elements_of_tensors_only() -> None:
    def logarithms(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.log(x), torch.log_softmax(x, -1)

    function = torch.compile(logarithms, options={"runtime_triton_nan_asserts": True})
    function(torch.ones(5, 37, device="mtia"))  # a block has more elements, and log(0) is infinite
    torch.mtia.synchronize()
    function(-torch.ones(5, 37, device="mtia"))
    with pytest.raises(RuntimeError, match=r"triton_\w+log\w+: device assertion failed: NaN or Inf found"):
        torch.mtia.synchronize()


def test_running_out_of_memory_in_compiled_code_leaves_the_device_usable() -> None:
    function = torch.compile(lambda x: x.expand(1 << 20, -1) + 1)
    x = torch.zeros(1, 1 << 20, device="mtia")
    with pytest.raises(torch.OutOfMemoryError, match=r"\w+ out of memory\."):
        function(x)
    assert (x + 1).sum().item() == 1 << 20


# And the rest ---------------------------------------------------------------------------------------------------------


def test_an_optimizer_step() -> None:
    results = []
    for device in ("cpu", "mtia"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 8).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        step = torch.compile(optimizer.step) if device == "mtia" else optimizer.step
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(3, 4, device=device)).square().sum().backward()
            step()
        results.append(model.weight.detach().cpu())
    torch.testing.assert_close(*results)


def test_recomputed_dropout_drops_the_same() -> None:
    from torch.utils.checkpoint import checkpoint

    def function(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(lambda x: F.dropout(x.exp(), 0.5), x, use_reentrant=False)
        return result

    x = torch.zeros(1000, device="mtia", requires_grad=True)
    result = torch.compile(function)(x)
    result.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, result)  # exp(0) = 1, and the gradient is what was kept


def test_recomputed_random_operators_repeat_the_numbers_of_eager_on_request() -> None:
    from torch.utils.checkpoint import checkpoint

    def function(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(lambda x: F.dropout(x.exp(), 0.5) * torch.rand_like(x), x, use_reentrant=False)
        return result

    def run(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        x = torch.zeros(1000, device="mtia", requires_grad=True)
        torch.manual_seed(0)
        result = function(x)
        return result, *torch.autograd.grad(result.sum(), x), torch.rand(3, device="mtia")

    for value, expected in zip(
        run(torch.compile(function, options={"fallback_random": True})), run(function), strict=True
    ):
        assert torch.equal(value, expected)


def test_autocast() -> None:
    layer = torch.nn.Linear(16, 8).to("mtia")

    def function(x: Tensor) -> Tensor:
        with torch.autocast("mtia", dtype=torch.bfloat16):
            return layer(x)  # type: ignore[no-any-return]

    x = on_device(4, 16)
    result, _ = generated(function, x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, function(x), rtol=1e-2, atol=1e-2)


def test_numbers_are_rounded_before_they_are_compared() -> None:
    x = torch.full((10,), 0.3, dtype=torch.bfloat16, device="mtia")
    result, code = generated(lambda x: x > 0.3, x)
    assert not result.any()
    assert "0.30078125" in code


def test_padded_operands_of_cat_are_written_into_one_buffer() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([F.pad(x * 2, (0, 1)), F.pad(y * 3, (1, 0))])

    x, y = on_device(10, 20), on_device(10, 20)
    result, code = generated(function, x, y)
    torch.testing.assert_close(result, function(x, y))
    assert code.count("empty_strided_mtia((") == 1


def test_rows_do_not_depend_on_the_batch_on_request() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(F.layer_norm(x, (300,)), -1)

    compiled = torch.compile(function, options={"batch_invariant": True}, dynamic=False)
    x = on_device(40, 300)
    assert torch.equal(compiled(x)[:1], compiled(x[:1]))


def test_complex_operators_run_as_their_own_kernels() -> None:
    x = on_device(30)
    lowering._warn_complex_not_supported.cache_clear()  # it warns once in a process, and not for code from a cache
    with fresh_cache(), pytest.warns(UserWarning, match="does not support code generation for complex"):
        result, code = generated(lambda x: torch.fft.fft(x).abs(), x)
    torch.testing.assert_close(result, torch.fft.fft(x).abs())
    assert "torch.ops.aten._fft_r2c" in code


def test_data_dependent_sizes() -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        size = n.item()
        torch._check(size > 0)
        return x.expand(size, -1) + 1  # type: ignore[arg-type]

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        result, _ = generated(function, on_device(1, 5), torch.tensor(3).to("mtia"), fullgraph=True)
    assert result.shape == (3, 5)


@pytest.mark.parametrize(("pool", "allocations"), [("none", 5), ("intermediates", 3), ("outputs", 2), ("combined", 1)])
def test_buffers_are_planned_into_pools_on_request(pool: str, allocations: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        a = x @ x
        b = a.sin() @ x
        c = b.cos() @ a
        return c.sum(1), (c @ b).exp()

    x = on_device(64, 64) / 8
    result, code = generated(function, x, options={"memory_planning": True, "memory_pool": pool})
    torch.testing.assert_close(result, function(x))
    assert len(re.findall(r"^ +pool\d = empty_strided_mtia\(", code, re.MULTILINE)) == allocations


def test_row_reductions_are_read_once_and_compiled_once() -> None:
    counters.clear()
    x = on_device(16, 3000)
    result, code = generated(lambda x: torch.softmax(x, -1), x)
    torch.testing.assert_close(result, torch.softmax(x, -1))
    assert kernels(code) == ["triton_per_fused__softmax_prepare_softmax_online_0"]
    assert code.count("tl.load(") == 1
    assert not [name for name in counters["inductor"] if "benchmark" in name]


def test_autotuning_of_pointwise_kernels_on_request() -> None:
    counters.clear()
    x = on_device(5000)
    with inductor_config.patch(fx_graph_cache=False, autotune_local_cache=False):
        _, code = run_and_get_code(torch.compile(lambda x: x.sin() + 1, options={"max_autotune_pointwise": True}), x)
    assert "@triton_heuristics.pointwise" in code[0]
    assert counters["inductor"]["benchmarking.InductorBenchmarker.benchmark"] > 0


def test_the_fx_wrapper_calls_the_same_kernels_from_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MTIA's own converter takes it: `WrapperFxCodegen.compile_graph`."""
    graphs: list[torch.fx.GraphModule] = []

    def compile_graph(_wrapper: WrapperFxCodegen, graph: torch.fx.GraphModule) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(WrapperFxCodegen, "compile_graph", compile_graph)
    x, weight = on_device(16, 32), on_device(32, 8)

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ weight).sum(-1)

    torch._dynamo.reset()
    result = torch.compile(function, options={"fx_wrapper": True})(x, weight)
    torch.testing.assert_close(result, function(x, weight))
    (graph,) = graphs
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert triton_kernel_wrapper_mutation in called
    assert any("mm" in str(target) for target in called)
    allocated = [node.kwargs["device"] for node in graph.graph.nodes if node.target is torch.empty_strided]
    assert {torch.device(device).type for device in allocated} == {"mtia"}


def test_tensor_descriptors_are_not_generated() -> None:
    x = on_device(64, 128)
    options = {"triton.use_tensor_descriptor": True, "assume_aligned_inputs": True}
    result, code = generated(lambda x: x.sin() + x.t().contiguous().t(), x, options=options)
    torch.testing.assert_close(result, x.sin() + x)
    assert "tl.load(" in code
    assert "descriptor" not in code


# Scans ----------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("shape", "dim"), [((130, 2), 0), ((3000, 4), 0), ((2, 130, 2), 1), ((3, 20000, 5), 1)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float64])
def test_programs_share_a_scan_of_columns(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """Each computes a part of one column, and adds up what the programs before it say of theirs."""
    torch._dynamo.reset()
    function = torch.compile(lambda x: x.cumsum(dim))
    for _ in range(5):
        x = torch.randint(-1000, 1000, shape).to(dtype)
        assert torch.equal(function(x.to("mtia")).cpu(), x.cumsum(dim).to(dtype))


@pytest.mark.parametrize("operator", [torch.cumprod, torch.logcumsumexp])
def test_programs_share_other_scans(operator: Callable[..., Tensor]) -> None:
    x = 1 + torch.randn(3000, 4, dtype=torch.float64) / 100
    result, code = generated(lambda x: operator(x, 0), x.to("mtia"))
    assert "split_scan" in code
    torch.testing.assert_close(result.cpu(), operator(x, 0))


# Rows of lengths that vary --------------------------------------------------------------------------------------------


def sorted_softmax(x: Tensor) -> Tensor:
    return x.sort(-1)[0].softmax(-1)


def short_softmax(x: Tensor) -> Tensor:
    torch._check(x.shape[1] <= 8192)
    return (x * 2).softmax(-1)


@pytest.mark.parametrize("function", [sorted_softmax, short_softmax])
def test_rows_may_become_much_longer_than_those_of_the_first_call(function: Callable[[Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=True)
    for shape in ((4, 3), (5, 700), (3, 8192), (1000, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x.to("mtia")).cpu(), function(x))


# Narrow integers ------------------------------------------------------------------------------------------------------

QUOTIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "wraps around": lambda x, y: (x // 3 - y) > 5,
    "converted": lambda x, y: (x // 2 * y).float(),
    "power": lambda x, y: (x // 2) ** 2 > y,
    "inverted": lambda x, y: ~(x // 2) > y,
    "reduced": lambda x, y: (x // 3 - y).amin(),
    "reduced over columns": lambda x, y: (x // 3 - y).amax(0),
    "position": lambda x, y: (x // 2 - y).argmin(0),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", QUOTIENTS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_quotients_of_narrow_integers_are_narrow(name: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 120, (100, 5)).to(dtype)
    y = torch.randint(1, 120, (100, 5)).to(dtype)
    assert torch.equal(generated(QUOTIENTS[name], x.to("mtia"), y.to("mtia"))[0].cpu(), QUOTIENTS[name](x, y))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_quotients_of_the_least_and_the_largest_numbers_are_exact(dtype: torch.dtype) -> None:
    least, largest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    numbers = [least, least + 1, -7, -2, -1, 0, 1, 2, 7, largest - 1, largest]
    pairs = [(a, b) for a in numbers for b in numbers if b != 0 and (a, b) != (least, -1)]
    x, y = torch.tensor(pairs, dtype=dtype, device="mtia").unbind(1)
    quotients = torch.compile(lambda x, y: x // y)(x, y)
    assert quotients.dtype == dtype
    assert quotients.tolist() == [a // b for a, b in pairs]
