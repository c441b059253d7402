"""Control flow, calls, grids, and values that live across them."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError
from triton_language import tensors_on_mtia, with_source  # noqa: F401

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")


def test_while_with_tensors_and_break_conditions() -> None:
    @triton.jit
    def kernel(x, z, N: tl.constexpr):
        i = tl.arange(0, N)
        v = tl.load(x + i)
        steps = 0
        while (tl.max(v, 0) > 1) & (steps < 50):
            v = v // 2
            steps += 1
        tl.store(z + i, v * 100 + steps)

    x, z = torch.randint(1, 1000, (32,)), torch.zeros(32, dtype=torch.int64)
    kernel[(1,)](x, z, N=32)
    v, steps = x.clone(), 0
    while v.max() > 1:
        v, steps = v // 2, steps + 1
    assert torch.equal(z, v * 100 + steps)


def test_branches_of_few_operations_on_elements() -> None:
    """Both branches are done, and the result is selected: by a scalar, in loops, more than one, one within another."""

    @triton.jit
    def kernel(x, y, z, flag, n, N: tl.constexpr):
        i = tl.arange(0, N)
        a, b = tl.load(x + i), tl.load(y + i)
        for step in range(n):
            if step % 2 == flag:
                a, b = a + b, b * 3
            else:
                a, b = b, a - step
            if flag > 0:  # noqa: SIM102
                if step > 1:
                    a = a ^ b
        tl.store(z + i, a - b)

    x, y = torch.randint(-99, 99, (2, 37), dtype=torch.int32)
    x, y = torch.nn.functional.pad(x, (0, 27)), torch.nn.functional.pad(y, (0, 27))
    for flag in (0, 1, 2):
        for n in (0, 1, 4):
            z = torch.zeros_like(x)
            kernel[(1,)](x, y, z, flag, n, N=64)
            a, b = x, y
            for step in range(n):
                a, b = (a + b, b * 3) if step % 2 == flag else (b, a - step)
                a = a ^ b if flag > 0 and step > 1 else a
            assert torch.equal(z, a - b)


def test_a_branch_that_is_not_taken_does_not_divide() -> None:
    @triton.jit
    def kernel(x, z, d, N: tl.constexpr):
        i = tl.arange(0, N)
        v = tl.load(x + i)
        if d != 0:
            v = v // d
        tl.store(z + i, v)

    x = torch.arange(-32, 32, dtype=torch.int32)
    for d in (0, 3):
        z = torch.zeros_like(x)
        kernel[(1,)](x, z, d, N=64)
        assert torch.equal(z, x if d == 0 else torch.div(x, d, rounding_mode="trunc"))


def test_branches_with_tensors_and_scalars() -> None:
    @triton.jit
    def kernel(x, z, n, N: tl.constexpr):
        i = tl.arange(0, N)
        v = tl.load(x + i)
        if n > 10:
            if n > 20:
                v = v * 3
                scale = 7
            else:
                scale = 5
            v = v + scale
        else:
            scale = 2
        tl.store(z + i, v * scale)

    x = torch.arange(32)
    for n, expected in ((5, x * 2), (15, (x + 5) * 5), (25, (x * 3 + 7) * 7)):
        z = torch.zeros_like(x)
        kernel[(1,)](x, z, n, N=32)
        assert torch.equal(z, expected)


def test_early_returns() -> None:
    @triton.jit
    def kernel(x, n, m, N: tl.constexpr):
        p = tl.program_id(0)
        i = tl.arange(0, N)
        v = tl.load(x + p * N + i)
        if p >= n:
            return
        v = v + 1
        tl.store(x + p * N + i, v)
        if p >= m:
            return
        tl.store(x + p * N + i, v * 2)

    x = torch.arange(128.0).view(4, 32)
    expected = x.clone()
    expected[0] = (x[0] + 1) * 2
    expected[1:3] += 1
    kernel[(4,)](x, 3, 1, N=32)
    assert torch.equal(x, expected)


def test_nested_loops_with_runtime_bounds() -> None:
    @triton.jit
    def kernel(z, n, m):
        total = 0
        for a in range(n):
            for b in range(a, m, 2):
                if (a + b) % 3 == 0:
                    total += a * b
        tl.store(z, total)

    z = torch.zeros(1, dtype=torch.int32)
    kernel[(1,)](z, 17, 23)
    assert z.item() == sum(a * b for a in range(17) for b in range(a, 23, 2) if (a + b) % 3 == 0)


def test_loops_of_the_language() -> None:
    @triton.jit
    def kernel(z, n, N: tl.constexpr):
        total = tl.zeros([N], tl.int32)
        for k in tl.range(10, n, -3):
            total += k
        for k in tl.static_range(4):
            total += k * tl.arange(0, N)
        tl.store(z + tl.arange(0, N), total)

    z = torch.zeros(32, dtype=torch.int32)
    kernel[(1,)](z, -5, N=32)
    assert torch.equal(z, torch.full((32,), sum(range(10, -5, -3))).int() + 6 * torch.arange(32).int())


@triton.jit(noinline=True)
def outlined(x, place, scale):
    v = tl.load(x + place)
    if scale > 5:
        return v * scale, scale
    return v, scale + 1


def test_functions_that_are_not_inlined() -> None:
    @triton.jit
    def kernel(x, z, n):
        i = tl.program_id(0)
        a, s = outlined(x, i, n)
        b, t = outlined(x, i, s)
        tl.store(z + i, a + b * 2 + t)

    x = torch.randn(32)
    for n in (3, 5, 8):
        z = torch.zeros(32)
        a, s = (x * n, n) if n > 5 else (x, n + 1)
        b, t = (x * s, s) if s > 5 else (x, s + 1)
        kernel[(32,)](x, z, n)
        assert torch.allclose(z, a + b * 2 + t)


@triton.jit
def reversed_sums(start, rounds, N: tl.constexpr):
    numbers = tl.arange(0, N) + start
    total = tl.zeros((N,), tl.int32)
    for _ in range(rounds):
        total += tl.gather(numbers, (N - 1) - tl.arange(0, N), 0)
        numbers += 3
    if rounds == 1:
        return total
    return total + 1


def test_what_one_call_moved_in_a_loop_is_not_there_in_the_next_call() -> None:
    @triton.jit
    def kernel(z, n, rounds, N: tl.constexpr):
        a = tl.zeros((N,), tl.int32)
        b = tl.zeros((N,), tl.int32)
        for k in range(n):
            a += reversed_sums(k, rounds, N)
            b += reversed_sums(100 - k, rounds, N)
        tl.store(z + tl.arange(0, N), a)
        tl.store(z + N + tl.arange(0, N), b)

    def expected(start: int, rounds: int) -> torch.Tensor:
        return sum(torch.arange(31, -1, -1) + start + 3 * k for k in range(rounds)) + torch.tensor(int(rounds != 1))

    for rounds in (0, 1, 4):
        z = torch.zeros(2, 32, dtype=torch.int32)
        kernel[(1,)](z, 3, rounds, N=32)
        assert torch.equal(z[0].long(), sum((expected(k, rounds) for k in range(3)), torch.zeros(32).long()))
        assert torch.equal(z[1].long(), sum((expected(100 - k, rounds) for k in range(3)), torch.zeros(32).long()))


def test_grids_of_three_dimensions() -> None:
    @triton.jit
    def kernel(z):
        x, y, w = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        a, b, c = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
        tl.store(z + (w * b + y) * a + x, x * 10000 + y * 100 + w + c * 0)

    z = torch.zeros(4, 3, 5, dtype=torch.int32)
    kernel[(5, 3, 4)](z)
    w, y, x = torch.meshgrid(torch.arange(4), torch.arange(3), torch.arange(5), indexing="ij")
    assert torch.equal(z, (x * 10000 + y * 100 + w).int())


def test_an_empty_kernel_without_arguments() -> None:
    @triton.jit
    def kernel():
        pass

    assert kernel[(3,)]().name == "kernel"


def test_tuples() -> None:
    @triton.jit
    def kernel(z, pair, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(z + i, pair[0] + pair[1][0] * i)

    z = torch.zeros(16, dtype=torch.int32)
    kernel[(1,)](z, (3, (4, 5)), N=16)
    assert torch.equal(z, 3 + 4 * torch.arange(16).int())


def test_inline_assembly_is_refused_with_its_line() -> None:
    @triton.jit
    def kernel(z, N: tl.constexpr):
        i = tl.arange(0, N)
        v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [i], dtype=tl.int32, is_pure=True, pack=1)
        tl.store(z + i, v)

    with pytest.raises(CompilationError, match="inline assembly") as error:
        kernel[(1,)](torch.zeros(16, dtype=torch.int32), N=16)
    assert "test_triton_control_flow.py" in str(error.value)


# Debugging ------------------------------------------------------------------------------------------------------------


def test_assertions() -> None:
    @triton.jit
    def kernel(x, N: tl.constexpr):
        v = tl.load(x + tl.program_id(0) * N + tl.arange(0, N))
        tl.device_assert(v < 50, "too large")
        tl.device_assert(tl.sum(v, 0) >= 0)

    x = torch.arange(64, dtype=torch.int32)
    kernel[(1,)](x, N=32, debug=True)
    kernel[(2,)](x, N=32, debug=True)
    with pytest.raises(RuntimeError, match=r"too large.*program \(1, 0, 0\)"):
        torch.mtia.synchronize()


def test_assumptions_reach_the_optimizer() -> None:
    @triton.jit
    def kernel(z, n):
        left = n - tl.program_id(0)
        tl.assume(left > 8)
        if left > 4:
            tl.store(z + tl.program_id(0), left)
        else:
            tl.store(z + tl.program_id(0), -987654)

    z = torch.zeros(3, dtype=torch.int32)
    compiled = kernel[(3,)](z, 20)
    assert z.tolist() == [20, 19, 18]
    assert "llvm.assume" in compiled.asm["llir"]
    assert "-987654" not in compiled.asm["llir"]


def test_prints_have_the_form_of_those_on_a_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    @triton.jit
    def kernel(x, y, N: tl.constexpr):
        value = tl.load(x + tl.arange(0, N))
        tl.device_print("value", value)
        tl.device_print("hex", value.to(tl.int16), hex=True)
        tl.device_print("scalar", tl.program_id(0) + 7)
        tl.device_print("float", tl.load(y + tl.arange(0, 4)))
        tl.device_print("", tl.reshape(value, (2, N // 2)), value > 5)
        tl.device_print("unsigned", value.to(tl.uint8))
        print("nothing")

    x = torch.arange(-5, 11, dtype=torch.int32)
    y = torch.tensor([1.5, -0.001, 1e20, float("nan")])
    kernel[(1,)](x, y, N=16)
    torch.mtia.synchronize()
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if "value" in line] == [
        f"pid (0, 0, 0) idx ({i:2}) value: {i - 5}" for i in range(16)
    ]
    assert "pid (0, 0, 0) idx ( 9) hex: 0x0004" in lines
    assert "pid (0, 0, 0) idx () scalar: 7" in lines
    assert "pid (0, 0, 0) idx (1, 3): (operand 0) 6" in lines
    assert "pid (0, 0, 0) idx (11): (operand 1) 1" in lines
    assert "pid (0, 0, 0) idx ( 0) unsigned: 251" in lines
    assert "pid (0, 0, 0) nothing" in lines
    printed = [line.partition(" float: ")[2] for line in lines if "float" in line]
    assert printed[:2] == ["1.500000", "-0.001000"]
    assert abs(float(printed[2]) / 1e20 - 1) < 1e-6
    assert printed[3] == "nan"
