"""The sanitizer finds who makes NaN and infinity, and says where in forward and backward."""

from __future__ import annotations

import re
import runpy
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from sanitizer import kernel_numbers, numbers
from test_sanitizer import reports_of

from torch_mtia import sanitizer

if TYPE_CHECKING:
    from tests.conftest import RunScript


def lines_of(frames: tuple[sanitizer.Frame, ...]) -> list[int]:
    return [frame.line for frame in frames if frame.file == "program.py"]


FLOATS = (
    torch.half,
    torch.bfloat16,
    torch.float,
    torch.double,
    torch.complex64,
    torch.complex128,
)
SHORT_FLOATS = (torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz)


@pytest.mark.parametrize("text", numbers.FINE.values(), ids=numbers.FINE)
def test_what_is_on_purpose_or_passed_on_is_not_reported(text: str) -> None:
    found = reports_of(text)
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1, 5, 1023, 1024, 1025, 5000])
def test_numbers_are_counted(dtype: torch.dtype, size: int) -> None:
    x = torch.ones(size, dtype=dtype, device="mtia")
    x[:: max(size // 3, 1)] = 0
    zeros = int((x.cpu() == 0).sum())
    with sanitizer.enabled("numbers"):
        x.log()
    (report,) = sanitizer.reports()
    sanitizer.reports().clear()
    assert (report.kind, report.nan, report.infinite) == ("not finite", 0, zeros)


@pytest.mark.parametrize("dtype", SHORT_FLOATS, ids=str)
def test_short_dtypes_have_nan(dtype: torch.dtype) -> None:
    x = torch.full((100,), 1e6, device="mtia")
    expected = x.cpu().to(dtype).float()
    with sanitizer.enabled("numbers"):
        x.to(dtype)
        x.div(1e6).to(dtype)
    found = list(sanitizer.reports())
    sanitizer.reports().clear()
    counts = [(int(expected.isnan().sum()), int(expected.isinf().sum()))]
    assert [(report.nan, report.infinite) for report in found] == [each for each in counts if any(each)]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x[:, 1:3],
        lambda x: x.t()[1:],
        lambda x: x.unfold(0, 3, 2),
        lambda x: x[3, 2],
        lambda x: x[:, None, :].expand(8, 5, 4),
    ],
)
def test_only_what_is_written_counts(view: object) -> None:
    assert callable(view)
    x = torch.zeros(8, 4, device="mtia")
    result = torch.full((8, 4), float("nan"), device="mtia")
    with sanitizer.enabled("numbers"):
        view(x).reciprocal()
        if not view(result).numel() > result.numel():
            torch.add(view(x), 1, out=view(result).clone())
    (report,) = sanitizer.reports()
    sanitizer.reports().clear()
    assert report.infinite == view(x).numel()


def test_each_replay_is_looked_at() -> None:
    text = """
x = torch.ones(4, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x.log() + 1
for number in (1, 0, 2, 0):
    x.fill_(number)
    graph.replay()
"""
    (report,) = reports_of(text)
    assert (report.count, report.access.operator) == (2, "aten::log")
    assert lines_of(report.access.frames) == [5]


def test_nothing_is_looked_at_once_it_is_off() -> None:
    x, graph = torch.ones(4, device="mtia"), torch.mtia.MTIAGraph()
    with sanitizer.enabled("numbers"), torch.mtia.graph(graph):
        x.log()
    x.zero_()
    graph.replay()
    x.log()
    assert not sanitizer.reports()


def test_work_on_busy_streams_is_waited_for() -> None:
    x = torch.zeros(1 << 20, device="mtia")
    side = torch.Stream("mtia")
    with sanitizer.enabled("numbers"):
        a = torch.ones(512, 512, device="mtia")
        for _ in range(10):
            a = a @ a / 512
        side.wait_stream(torch.mtia.current_stream())
        with side:
            x.reciprocal()
        assert [report.access.operator for report in sanitizer.reports()] == ["aten::reciprocal"]
    sanitizer.reports().clear()


def test_a_report_of_a_kernel_names_the_line_that_made_it() -> None:
    found = reports_of(kernel_numbers.PROGRAMS[1].faulty)
    assert [report.access.program for report in found] == [(0, 0, 0)]
    (report,) = found
    assert report.access.line is not None
    assert report.earlier is not None
    assert report.earlier.line is not None
    assert report.earlier.line.argument == "out"
    assert report.access.line[:2] == report.earlier.line[:2]
    assert report.nan > 0
    assert report.infinite == 0
    assert f"\n  the result has {report.nan} NaN value{'s' * (report.nan > 1)}; all inputs are finite\n" in str(report)


PASSED_ON = {
    "a sum over lanes": "tl.store(out, tl.sum(e))",
    "sums so far": "tl.store(out + i, tl.cumsum(e, 0))",
    "a product of matrices": "m = tl.dot(e[:, None] * one, one + e[None, :]); tl.store(out + i, tl.sum(m, 0))",
    "a conversion": "tl.store(out + i, e.to(tl.float16))",
    "an atomic operation": "tl.atomic_add(out + i, e)",
}


@pytest.mark.parametrize("end", PASSED_ON.values(), ids=PASSED_ON)
def test_who_passes_on_what_is_not_finite_is_not_named(end: str) -> None:
    dtype = "half" if "16" in end else "float"
    found = reports_of(f"""
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    one = tl.full((BLOCK, BLOCK), 1.0, tl.float32)
    e = tl.exp(tl.load(x + i))
    {end}
''')
x, out = torch.zeros(32, device="mtia"), torch.zeros(32, device="mtia", dtype=torch.{dtype})
x[13] = 200
kernel[(1,)](x, out, BLOCK=32)
""")
    assert [report.access.line[1] for report in found if report.access.line is not None] == [9]


COMPILED = """
import torch
from torch_mtia import sanitizer

def loss(x):
    return (x * 2).sqrt().sum()

x = torch.zeros(64, device="mtia", requires_grad=True)
step = torch.compile(loss)
with sanitizer.enabled("numbers"):
    for _ in range(2):
        step(x).backward()
for report in sanitizer.reports():
    access = report.access
    print(report.kind, report.count, access.operator, access.node, [frame.line for frame in access.backward][-1:])
"""


@pytest.mark.wide
def test_compiled_code_has_kernels_of_its_own(run_script: RunScript) -> None:
    finished = run_script(COMPILED)
    assert finished.stdout
    for line in finished.stdout.splitlines():
        kind, _, operator, node, lines = line.rsplit(" ", 4)
        assert (kind, node, lines) == ("not finite", "CompiledFunctionBackward", "[12]")
        assert operator.startswith("triton_poi_fused_")


SAME = {
    "a product and a number": "r = a * b + c",
    "less a number": "r = a * b - c",
    "a number less a product": "r = c - a * b",
    "two products": "r = a * b + c * a",
    "a product that is needed twice": "p = a * b; r = p + c + p * a",
    "chains": "r = (a * b + c) * b - (c * a - b)",
    "a softmax": "e = tl.exp(a - tl.max(a)); r = e / tl.sum(e)",
    "a layer normalization": "d = a - tl.sum(a) / N; r = d * tl.rsqrt(tl.sum(d * d) / N + 1e-5) * b + c",
    "gelu": "r = 0.5 * a * (1 + tl.math.erf(a * 0.7071067811865476))",
    "a product of matrices": "m = tl.dot(a[:, None] * b[None, :], b[:, None] + c[None, :]); r = tl.sum(m, 1) * a + b",
    "sums so far": "r = tl.cumsum(a * b, 0) * c",
    "a recurrence": "_, r = tl.associative_scan((a, b), 0, recur)",
}
RECURRENCE = """
import triton
import triton.language as tl

@triton.jit
def recur(a, b, c, d):
    return a * c, c * b + d

@triton.jit
def kernel(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c = tl.load(x + i), tl.load(y + i), tl.load(z + i)
    BODY
    tl.store(out + i, r)
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float, torch.double], ids=str)
@pytest.mark.parametrize("body", SAME.values(), ids=SAME)
def test_who_is_looked_at_has_the_results_that_it_has_unseen(body: str, dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "same.py"
    path.write_text(RECURRENCE.replace("BODY", body))
    kernel = runpy.run_path(str(path))["kernel"]
    operands = [torch.randn(64, dtype=dtype, device="mtia") for _ in range(3)]
    results = []
    for options in ({}, {"instrument": True}, {"instrument": True, "follow_numbers": True}):
        results.append(torch.zeros(64, dtype=dtype, device="mtia"))
        kernel[(1,)](*operands, results[-1], 64, **options)
    unseen, *seen = results
    assert unseen.isfinite().all()
    assert all(torch.equal(each, unseen) for each in seen)


COMPILED_TWICE = """
import torch
from torch import nn
from torch_mtia import sanitizer

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8), nn.Softmax(-1)).to("mtia")
x = torch.randn(16, 32, device="mtia")

def step():
    model.zero_grad()
    loss = torch.compile(lambda x: (model(x) ** 2).mean() + (x * x - x).sin().sum())(x)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

unseen = step()
torch.compiler.reset()
with sanitizer.enabled("numbers"):
    seen = step()
print(all(map(torch.equal, seen, unseen)), len(sanitizer.reports()))
"""


@pytest.mark.wide
def test_compiled_code_has_the_results_that_it_has_unseen(run_script: RunScript) -> None:
    assert run_script(COMPILED_TWICE).stdout == "True 0\n"


BACKWARD = """\
def forward(x):
    flat = x.view(4)
    return flat.sqrt().sum()
x = torch.zeros(2, 2, device="mtia", requires_grad=True)
loss = forward(x)
loss.backward()
"""


def test_a_report_of_backward_names_its_node_and_where_both_were_called() -> None:
    (report,) = reports_of(BACKWARD)
    text = re.sub(r"(?m)^ +(?!program)\S+:\d+ in .*\n", "", str(report))
    assert (
        text
        == """\
Not finite: an operation makes NaN or infinity that its inputs do not have
  aten::div writes float32[4] on the default stream of device 0
    in SqrtBackward0, during backward() called at
      program.py:6 in <module>
    differentiating the operator called at
      program.py:3 in forward
      program.py:5 in <module>
  the result has 4 infinite values; all inputs are finite
  Fix: keep the inputs in the operation's range, as `x.clamp(min=1e-12)` does, or use a wider dtype."""
    )


@pytest.mark.parametrize(
    "call", ["torch.autograd.grad(loss, x, retain_graph=True)", "loss.backward(retain_graph=True)"]
)
def test_calls_of_backward_are_told_apart(call: str) -> None:
    text = BACKWARD.replace("loss.backward()", f"for _ in range(3):\n    {call}\n{call}")
    found = reports_of(text)
    assert [(lines_of(report.access.backward), report.count) for report in found] == [([7], 3), ([8], 1)]
    assert all(report.access.node == "SqrtBackward0" for report in found)


def test_a_function_of_python_has_its_lines() -> None:
    text = """
class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sqrt()
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / x.sqrt()
x = torch.zeros(4, device="mtia", requires_grad=True)
Root.apply(x).sum().backward()
"""
    (report,) = reports_of(text)
    assert report.access.node == "RootBackward"
    assert lines_of(report.access.frames) == [10]
    assert lines_of(report.access.forward) == lines_of(report.access.backward) == [12]


def test_forwards_of_several_threads_are_told_apart() -> None:
    found = []

    def train(power: float) -> None:
        x = torch.zeros(4, device="mtia", requires_grad=True)
        losses.append(x.pow(power).sum() if power < 1 else x.sqrt().sum())

    losses: list[torch.Tensor] = []
    with sanitizer.enabled("numbers"):
        for power in (0.5, 1):
            thread = threading.Thread(target=train, args=(power,))
            thread.start()
            thread.join()
        for loss in losses:
            loss.backward()
        found = list(sanitizer.reports())
    sanitizer.reports().clear()
    assert [report.access.node for report in found] == ["PowBackward0", "SqrtBackward0"]
    assert {report.access.forward[0].function for report in found} == {"train"}


def test_races_of_backward_have_lines(run_script: RunScript) -> None:
    finished = run_script(
        """
import torch
from torch_mtia import sanitizer
from torch_mtia.sanitizer.report import own_lines

side = torch.Stream("mtia")
x = torch.ones(1000, device="mtia", requires_grad=True)
with sanitizer.enabled("streams"):
    y = x.exp()
    y.sum().backward()
    with side:
        x.grad + 1
for report in sanitizer.reports():
    at = report.earlier
    print(at.node, own_lines(at.forward)[0].line, own_lines(at.backward)[0].line)
"""
    )
    assert finished.stdout.split() == ["ExpBackward0", "9", "10"]


@pytest.mark.wide
def test_two_devices(run_script: RunScript) -> None:
    finished = run_script(
        """
import torch
from torch_mtia import sanitizer

with sanitizer.enabled():
    x = torch.zeros(10, device="mtia:1")
    x.to("mtia:0").add(1).log()
    x.log()
    x.to("mtia:0")
for report in sanitizer.reports():
    print(report.kind, report.access.device)
""",
        TORCH_MTIA_DEVICES="2",
    )
    assert finished.stdout == "not finite 1\n"


def test_the_process_waits_for_its_work_before_it_says_what_was_found(run_script: RunScript) -> None:
    finished = run_script(
        "import torch\nx = torch.zeros(1 << 20, device='mtia')\nfor _ in range(5):\n    y = x.exp()\nx.reciprocal()\n",
        TORCH_MTIA_SANITIZE="numbers",
    )
    assert "aten::reciprocal writes float32[1048576]" in finished.stderr
    assert finished.stderr.endswith("torch_mtia sanitizer: 1 report\n")


def test_scalers_of_gradients_are_put_back_and_those_derived_from_them_watched() -> None:
    scale = torch.amp.GradScaler.scale
    x = torch.ones(4, device="mtia", dtype=torch.half, requires_grad=True)
    with sanitizer.enabled("numbers"):
        assert torch.amp.GradScaler.scale is not scale

        class Scaler(torch.amp.GradScaler):
            def scale(self, outputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
                return outputs * 60000.0

        (gradient,) = torch.autograd.grad(Scaler("mtia").scale((x * 4).float().sum()), x)
        assert gradient.isinf().all()
    assert torch.amp.GradScaler.scale is scale
    assert not hasattr(Scaler.scale, "__wrapped__")
    assert not sanitizer.reports()
