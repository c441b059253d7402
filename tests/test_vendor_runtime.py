"""A driver without a host view: examples/vendor_runtime, whose device is another process."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RunScript
    from tests.interpreter import Finished

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "examples" / "vendor_runtime"

pytestmark = pytest.mark.in_tree("the scripts use torch.mtia")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vendor")
    subprocess.run(["make", "-C", str(SOURCES), f"OUT={folder}"], check=True, capture_output=True, timeout=300)
    return folder / "libvendor.so"


@pytest.fixture
def run(run_script: RunScript, driver: Path) -> Callable[..., Finished]:
    return partial(run_script, TORCH_MTIA_RUNTIME=str(driver), PYTHONPATH=str(ROOT / "examples"), timeout=400)


def test_it_needs_nothing_but_the_header() -> None:
    included = {
        line.split('"')[1]
        for source in SOURCES.glob("*.[ch]*")
        for line in source.read_text().splitlines()
        if line.startswith('#include "')
    }
    assert included == {path.name for path in SOURCES.glob("*.h")} | {"mtia_runtime.h"}


def test_it_keeps_the_contract(driver: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_mtia.conformance", "--driver", str(driver), "-j", "0"]
    finished = subprocess.run(
        [*command, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=400, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_copies_of_every_kind(run: Callable[..., Finished]) -> None:
    run("""
        import torch
        import torch_mtia

        assert "host_view" not in torch_mtia._C._driver_info()["capabilities"]
        x = torch.arange(24.0).reshape(4, 6)
        y = x.to("mtia")
        assert torch.equal(y.cpu(), x)
        assert torch.equal(y.t().cpu(), x.t())  # strides on the device
        assert torch.equal(x.t().to("mtia").cpu(), x.t())  # on the host
        assert torch.equal(y[:, ::2].contiguous().cpu(), x[:, ::2])  # within the device
        assert torch.equal(y.to(torch.int32).cpu(), x.to(torch.int32))
        assert torch.equal(y.to("cpu", torch.float64), x.double())
        assert torch.equal(torch.complex(y, y).conj().cpu(), torch.complex(x, -x))
        assert torch.equal(torch.complex(y, y).conj_physical_().cpu(), torch.complex(x, -x))
        y[1:3, 2] = torch.tensor([5, 6])  # into a view, from another dtype
        assert y[:, 2].tolist() == [2, 5, 6, 20]
        assert y[1, 3].item() == 9
        assert torch.zeros(5, device="mtia").tolist() == [0] * 5
        assert torch.full((3,), 2.5, dtype=torch.bfloat16, device="mtia").tolist() == [2.5] * 3
        y[:, 0].fill_(7)
        assert y[:, :2].tolist() == [[7, 1], [7, 7], [7, 13], [7, 19]]
        y.resize_(5, 6)
        assert y[3].tolist() == [7, 19, 20, 21, 22, 23]
        pinned = x.pin_memory()
        assert torch.equal(pinned.to("mtia", non_blocking=True).cpu(), x)
        assert "device='mtia:0'" in repr(y)
    """).output()


def test_operators_give_what_the_cpu_gives(run: Callable[..., Finished]) -> None:
    said = run("""
        import torch
        import torch.nn.functional as F
        import torch_mtia
        from torch.utils._pytree import tree_map

        torch.manual_seed(0)
        x = torch.randn(4, 6)
        def check(f):
            device = tree_map(torch.Tensor.cpu, f(x.to("mtia").requires_grad_()))
            torch.testing.assert_close(device, f(x.clone().requires_grad_()))

        def gradient(f, x):
            f(x).sum().backward()
            return x.grad

        check(lambda x: x @ x.t())
        check(lambda x: x.detach().unbind(1)[2].add_(1))
        check(lambda x: torch.cat([x, x[1:]]).softmax(0))
        check(lambda x: torch.stack([*torch.linalg.svd(x)[1]]))
        check(lambda x: x[x.detach() > 0])
        numbers = torch.tensor([0, 3, 7, 7, 9], device="mtia")
        assert torch.histc(numbers, 8, 0, 7).tolist() == [1, 0, 0, 1, 0, 0, 0, 2]
        assert torch.histc(numbers, 2, out=numbers[:2]).tolist() == [2, 3]
        check(lambda x: x.detach().sort(1).values.index_add_(0, torch.tensor([1]).to(x.device), x.detach()[:1]))
        check(lambda x: torch.sub(x.detach(), 1, out=torch.empty(0, device=x.device)))
        check(lambda x: torch.mode(x.detach(), out=(torch.empty(0, device=x.device),
                                                    torch.empty(0, device=x.device, dtype=torch.long))))
        check(lambda x: F.layer_norm(x.detach().bfloat16(), (6,)))
        check(lambda x: torch.addr(*(v.detach().bfloat16() for v in (x[:, :4], x[:, 0], x[:, 1])), alpha=3))
        check(lambda x: torch.ldexp(x, torch.tensor([0, 1, 2, 3, -1, -2], device=x.device)))
        for arguments in ((5,), (5, False), (5, True, 2.0)):
            check(lambda x: torch.kaiser_window(*arguments, device=x.device))
        for dtype in (torch.int8, torch.int32, torch.uint32, torch.int64):
            check(lambda x: torch.tensor([float("nan"), -float("inf"), 3e9, 2.5], device=x.device).to(dtype))
        check(lambda x: gradient(lambda x: x.sin() * x.exp(), x))
        check(lambda x: gradient(lambda x: F.layer_norm(x, (6,)).pow(2) * x, x))
        check(lambda x: gradient(lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3), x))
        conv, back = torch.nn.Conv1d(1, 2, 3), torch.nn.ConvTranspose2d(2, 4, 3, groups=2)
        check(lambda x: gradient(lambda x: conv.to(x.device)(x[:, None]), x))
        check(lambda x: gradient(lambda x: back.to(x.device)(x.view(1, 2, 3, 4)), x))
        check(lambda x: back.zero_grad() or gradient(lambda x: back.to(x.device)(x.view(1, 2, 3, 4)), x) * 0
              + back.weight.grad.sum() + back.bias.grad.sum())

        def statistics(x):  # an operator that writes what its schema does not mark
            norm = torch.nn.BatchNorm1d(6).to(x.device)
            norm(x)
            return torch.stack([norm.running_mean, norm.running_var])
        check(statistics)

        base = x.to("mtia")
        view = base[1:3]
        torch.cumsum(view, 0, out=view)
        torch.testing.assert_close(base.cpu(), torch.cat([x[:1], x[1:3].cumsum(0), x[3:]]))

        torch.manual_seed(3)
        first = torch.rand(100, device="mtia"), torch.nn.Dropout()(torch.ones(100, device="mtia"))
        torch.manual_seed(3)
        again = torch.rand(100, device="mtia"), torch.nn.Dropout()(torch.ones(100, device="mtia"))
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, again))
        assert first[0].unique().numel() > 90

        for size in (slice(2), slice(None, None, 50)):  # which are resized within their storage
            storage = torch.zeros(100, device="mtia")
            out = storage[size]
            torch.cumsum(torch.ones(60, device="mtia"), 0, out=out)
            assert storage.tolist() == [*range(1, 61), *[0] * 40] and out.shape == (60,)

        images = torch.rand(1, 2, 4, 4, 4)
        out = torch.ones(1, 2, 2, 2, 2, device="mtia").mT  # which the CPU's kernel would take for contiguous
        torch._C._nn.avg_pool3d(images.to("mtia"), 2, out=out)
        torch.testing.assert_close(out.cpu(), F.avg_pool3d(images, 2))
        assert out.stride() == (16, 8, 4, 1, 2)

        try:
            torch.rand(3, generator=torch.Generator("mtia"))
            assert False
        except RuntimeError as error:
            assert "Expected a 'cpu' device type for generator but found 'mtia" in str(error), error

        print(torch_mtia.fallback.stats()["aten::convolution"])
        with torch_mtia.fallback.forbid():
            base.clone(), base.view(-1), torch.zeros(3, device="mtia")
            try:
                base.cumsum(0)
            except NotImplementedError as error:
                print("aten::cumsum" in str(error))
    """).output()
    assert said.split() == ["3", "True"]


@pytest.mark.wide
def test_a_refused_call_leaves_no_copies_behind(run: Callable[..., Finished]) -> None:
    """They would write to memory that is no longer theirs: here, to a range that the process no longer has."""
    run("""
        import torch

        x = torch.ones(1 << 24, device="mtia")
        for _ in range(3):
            try:
                x.uniform_(generator=torch.Generator())
                assert False
            except RuntimeError as error:
                assert "generator" in str(error), error
            torch.mtia.synchronize()
    """).output()


@pytest.mark.wide
def test_networks_train(run: Callable[..., Finished]) -> None:
    said = run("""
        import torch

        def losses(device, **options):
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.GELU(),
                                      torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 10))
            rnn = torch.nn.LSTM(10, 5)
            images, labels = torch.randn(8, 1, 8, 8), torch.randint(5, (8,))
            net, rnn, images, labels = net.to(device), rnn.to(device), images.to(device), labels.to(device)
            optimizer = torch.optim.AdamW([*net.parameters(), *rnn.parameters()], lr=0.01, **options)
            said = []
            for _ in range(4):
                loss = torch.nn.functional.cross_entropy(rnn(net(images)[None])[0][0], labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                said.append(loss.item())
            return torch.tensor(said)

        for options in {"foreach": True}, {"fused": True}:
            torch.testing.assert_close(losses("mtia", **options), losses("cpu", **options))
        print("trained")
    """).output()
    assert said == "trained\n"


def test_streams_events_and_two_devices(run: Callable[..., Finished]) -> None:
    run(
        """
        import torch

        x = torch.arange(1 << 20).to("mtia:0")
        other = x.to("mtia:1")
        assert other.device.index == 1 and torch.equal(other.cpu(), x.cpu())
        assert torch.equal(x.view(1024, 1024).t().to("mtia:1").cpu(), x.view(1024, 1024).t().cpu())

        stream = torch.mtia.Stream()
        start, end = torch.mtia.Event(enable_timing=True), torch.mtia.Event(enable_timing=True)
        start.record()
        with torch.mtia.stream(stream):
            stream.wait_event(start)
            y = x.clone()
        stream.record_event(end)
        torch.mtia.current_stream().wait_stream(stream)
        end.synchronize()
        assert torch.equal(y.cpu(), x.cpu()) and start.elapsed_time(end) >= 0
        assert stream.query()
        """,
        TORCH_MTIA_DEVICES="2",
    ).output()


def test_triton_kernels_and_graphs_of_them(run: Callable[..., Finished]) -> None:
    run("""
        import torch
        import torch_mtia
        from triton_vector_add import add

        x, y = torch.randn(2, 10_000).to("mtia").unbind()
        z = torch.zeros(10_000, device="mtia")
        with torch_mtia.fallback.forbid():
            assert torch.equal(add(x, y).cpu(), x.cpu() + y.cpu())
            graph = torch.mtia.MTIAGraph()
            with torch.mtia.graph(graph):
                z.copy_(add(x, y))
                y.fill_(1)
        assert z.count_nonzero() == 0
        expected = x.cpu() + y.cpu()
        graph.replay()
        assert torch.equal(z.cpu(), expected)
        graph.replay()
        assert torch.equal(z.cpu(), x.cpu() + 1)
    """).output()


def test_a_capture_refuses_what_falls_back(run: Callable[..., Finished]) -> None:
    finished = run("""
        import torch
        x = torch.ones(3, device="mtia")
        with torch.mtia.graph(torch.mtia.MTIAGraph()):
            x.cumsum(0)
    """)
    assert finished.returncode == 1
    assert "aten::cumsum cannot be captured in a graph" in finished.stderr


def test_the_host_has_no_view_of_its_memory(run: Callable[..., Finished]) -> None:
    finished = run("""
        import torch
        from torch_mtia.memory import host_view
        host_view(torch.ones(3, device="mtia"))
    """)
    assert finished.returncode == 1
    assert "NotImplementedError: the driver gives the host no view of the device's memory" in finished.stderr


def test_sums_of_16_bit_numbers_are_rounded_once(run: Callable[..., Finished]) -> None:
    run(
        """
        import torch
        from torch_mtia.conformance.suites.accumulation import CASES, faults

        found = []
        for case in CASES:
            for dtype in (torch.bfloat16, torch.float16):
                found += faults(case, dtype, case.results("mtia", dtype, dtype))
        assert not found, found
        """,
        PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'examples'}",
    ).output()


@pytest.mark.wide
@pytest.mark.slow
def test_compiled_code_runs_on_the_device(run: Callable[..., Finished]) -> None:
    run("""
        import torch
        import torch_mtia

        net = torch.nn.Sequential(torch.nn.Conv1d(2, 4, 3), torch.nn.GELU(), torch.nn.LayerNorm(30)).to("mtia")
        x = torch.randn(3, 2, 32, device="mtia")
        expected = net(x)
        expected.sum().backward()
        wanted = net[0].weight.grad.cpu()
        net.zero_grad()
        torch_mtia.fallback.reset()
        compiled = torch.compile(net)
        found = compiled(x)
        found.sum().backward()
        torch.testing.assert_close(found.cpu(), expected.cpu())
        torch.testing.assert_close(net[0].weight.grad.cpu(), wanted, atol=1e-4, rtol=1e-3)
        assert "aten::gelu.out" not in torch_mtia.fallback.stats()

        # Runs between two compiled parts: what launches its product is no part of the program.
        y = x[0].contiguous()
        between = torch.compile(torch.cov)(y)
        torch.testing.assert_close(between.cpu(), torch.cov(y.cpu()))
    """).output()


@pytest.mark.wide
def test_the_death_of_the_device_is_an_error_that_says_so(run: Callable[..., Finished]) -> None:
    said = run("""
        import os, signal, sys
        from pathlib import Path
        import torch

        def die(call):
            x = torch.ones(3, device="mtia")
            torch.mtia.synchronize()
            (device,) = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
            os.kill(int(device), signal.SIGKILL)
            os.waitid(os.P_PID, int(device), os.WEXITED | os.WNOWAIT)
            for _ in range(2):  # and so does whatever comes later
                try:
                    exec(call)
                except RuntimeError as error:
                    assert "is lost" in str(error) and "killed by signal 9" in str(error), error
                    assert "MTIA_ERROR_DEVICE_LOST" in str(error), error
                else:
                    sys.exit("no error")

        for call in ("x.cumsum(0)", "(x + 1).cpu()", "x.cpu()", "x.zero_(); torch.mtia.synchronize()",
                     "torch.empty(1 << 24, device='mtia')"):
            child = os.fork()  # the device is not in use yet
            if child == 0:
                die(call)
                sys.exit(0)
            print(os.waitpid(child, 0)[1], flush=True)  # what is buffered, the next child would print too
        print(torch.ones(2, device="mtia").tolist())  # a process that starts later has a device
    """).output()
    assert said.splitlines() == ["0"] * 5 + ["[1.0, 1.0]"]


@pytest.mark.wide
def test_processes_communicate(driver: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch_mtia.conformance",
        "--device",
        "mtia",
        "--suite",
        "distributed",
        "--shard",
        "1/40",
    ]
    finished = subprocess.run(
        [*command, "--folder", str(tmp_path), "-j", "0"],
        env={**os.environ, "TORCH_MTIA_RUNTIME": str(driver)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.wide
def test_the_sanitizer_says_that_it_cannot_see_numbers(run: Callable[..., Finished]) -> None:
    finished = run("""
        import torch
        from torch_mtia import sanitizer

        with sanitizer.enabled():
            torch.zeros(4, device="mtia").log()
        sanitizer.print_reports()
    """)
    assert "not checked: numbers, because the driver gives the host no view of the device's memory\n" in finished.stderr
    assert finished.stderr.endswith("torch_mtia sanitizer: no reports\n")


@pytest.mark.wide
def test_the_sanitizer_reports_nothing_for_what_it_cannot_know(run: Callable[..., Finished]) -> None:
    finished = run(
        """
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("mtia")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            x = torch.randn(8, 16).pin_memory().to("mtia", non_blocking=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(loss.item(), torch.special.bessel_j0(torch.ones(3, device="mtia")).cpu())
        """,
        TORCH_MTIA_SANITIZE="streams,memory,init",
    )
    finished.output()
    assert finished.stderr.endswith("torch_mtia sanitizer: no reports\n"), finished.stderr
