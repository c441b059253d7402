"""What graphs capture: operators, copies, random numbers, kernels, host functions, devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch._C._autograd import DeviceType

import torch_mtia
from tests.capturing import capture

if TYPE_CHECKING:
    from tests.conftest import RunScript

OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: torch.where(x > 0, x.exp(), -x) * 2,
    "mixed dtypes": lambda x: x * torch.arange(64, device="mtia").view(8, 8),
    "a number of the host": lambda x: x.bfloat16() * 3 + torch.tensor(0.5),
    "matmul": lambda x: x @ x.t() + 1,
    "reductions": lambda x: x.sum(0) + x.amax(1) + x.mean(),
    "views": lambda x: x.t().contiguous().view(4, 16)[:, ::2].clone(),
    "norms of which the order is a number": lambda x: torch.norm(x, 1.0, 1) + torch.norm(x, 3, 1),
    "softmax": lambda x: F.softmax(x, -1).log(),
    "norm": lambda x: F.layer_norm(x, (8,)),
    "convolution": lambda x: F.conv2d(x.view(1, 1, 8, 8), x.view(1, 1, 8, 8)[:, :, :3, :3], padding=1),
    "attention": lambda x: F.scaled_dot_product_attention(x.view(1, 2, 4, 8), x.view(1, 2, 4, 8), x.view(1, 2, 4, 8)),
    "indexing": lambda x: x[torch.arange(7, -1, -1, device="mtia")],
    "embedding": lambda x: F.embedding(torch.arange(8, device="mtia").view(2, 4), x),
    "sort": lambda x: torch.sort(x, dim=1).values,
    "cat and stack": lambda x: torch.cat([x, torch.stack([x[0], x[1]])]),
    "factories": lambda x: torch.full((8, 8), 2.0, device="mtia") + torch.zeros_like(x) + torch.eye(8, device="mtia"),
    "foreach": lambda x: torch.stack(torch._foreach_mul([x, x + 1], 2.0)),
    "out=": lambda x: torch.add(x, 1, out=torch.empty(8, 8, device="mtia")),
    "loss": lambda x: F.cross_entropy(x, torch.arange(8, device="mtia")),
    "autocast": lambda x: torch.autocast("mtia", torch.bfloat16)(lambda y: y @ y)(x).float(),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_what_they_compute_eagerly(name: str) -> None:
    operator = OPERATORS[name]
    x = torch.rand(8, 8, device="mtia")
    operator(x)  # the first call of an operator may wait
    graph, y = capture(lambda: operator(x))
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(8, 8))
        graph.replay()
        assert torch.equal(y.cpu(), operator(x).cpu())


def test_operators_that_have_not_run_before_are_captured(run_script: RunScript) -> None:
    script = """
        import torch
        x = torch.rand(8, 8, device="mtia")
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph):
            y = torch.cumsum(torch.sort(x @ x, dim=0).values, 1).amax(0)
        graph.replay()
        assert torch.equal(y.cpu(), torch.cumsum(torch.sort(x @ x, dim=0).values, 1).amax(0).cpu())
        print("equal")
    """
    assert run_script(script).output() == "equal\n"


# Copies --------------------------------------------------------------------------------------------------------------


def test_pinned_memory_is_read_and_written_by_each_replay() -> None:
    source = torch.zeros(1000).pin_memory()
    target = torch.zeros(1000).pin_memory()
    doubles = torch.zeros(1000, dtype=torch.float64).pin_memory()

    def body() -> None:
        x = source.to("mtia", non_blocking=True)
        target.copy_(x * 2, non_blocking=True)
        doubles.copy_(x, non_blocking=True)

    graph, _ = capture(body)
    for value in (1.0, 3.0):
        source.fill_(value)
        graph.replay()
        torch.mtia.synchronize()
        assert target.unique().tolist() == [2 * value]
        assert doubles.unique().tolist() == [value]


def test_pinned_memory_of_a_capture_stays_the_graphs() -> None:
    x = torch.arange(4096.0, device="mtia")
    graph, host = capture(lambda: x.to("cpu", non_blocking=True))
    others = [torch.full((4096,), -1.0).pin_memory() for _ in range(4)]
    graph.replay()
    torch.mtia.synchronize()
    assert torch.equal(host, torch.arange(4096.0))
    assert all(bool((other == -1).all()) for other in others)


def test_devices_are_nested_in_a_capture(run_script: RunScript) -> None:
    script = """
        import torch
        x = torch.ones(16, device="mtia:0")
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph):
            y = (x + 1).to("mtia:1")
            with torch.mtia.device(1):
                z = y * 3
            back = z.to("mtia:0") + x
        for value in (1.0, 2.0):
            x.fill_(value)
            graph.replay()
            torch.mtia.synchronize(0)
            assert back.tolist() == [(value + 1) * 3 + value] * 16, back
        before = torch.accelerator.memory_reserved(1)
        del graph, y, z, back
        torch.accelerator.empty_cache()
        assert torch.accelerator.memory_reserved(1) < before
        other = torch.mtia.MTIAGraph()
        with torch.mtia.device(1), torch.mtia.graph(other, stream=torch.mtia.Stream()):
            on_second = torch.ones(3, device="mtia:1") + 1
        other.replay()
        torch.mtia.synchronize(1)
        print(on_second.tolist())
    """
    assert run_script(script, TORCH_MTIA_DEVICES="2").output() == "[2.0, 2.0, 2.0]\n"


# Random numbers ------------------------------------------------------------------------------------------------------


def test_replays_draw_what_eager_calls_would() -> None:
    def draw() -> torch.Tensor:
        return torch.cat([torch.rand(100, device="mtia"), F.dropout(torch.ones(100, device="mtia"), 0.5)])

    graph, y = capture(draw)
    torch.manual_seed(7)
    replays = []
    for _ in range(4):
        graph.replay()
        replays.append(y.cpu())
    torch.manual_seed(7)
    eager = [draw().cpu() for _ in range(4)]
    assert torch.equal(torch.stack(replays), torch.stack(eager))
    assert not torch.equal(replays[0], replays[1])


def test_replays_and_eager_draws_share_the_generator() -> None:
    graph, y = capture(lambda: torch.rand(64, device="mtia"))
    torch.manual_seed(3)
    expected = [torch.rand(64, device="mtia").tolist() for _ in range(3)]
    torch.manual_seed(3)
    first = torch.rand(64, device="mtia").tolist()
    graph.replay()
    second = y.tolist()
    third = torch.rand(64, device="mtia").tolist()
    assert [first, second, third] == expected


def test_replays_in_a_queue_keep_their_numbers_apart() -> None:
    x = torch.zeros(2**21, device="mtia")
    drawn = torch.zeros(20, 4, device="mtia")
    row = torch.zeros(1, dtype=torch.long, device="mtia")

    def body() -> None:
        x.add_(1)
        drawn.index_copy_(0, row, torch.rand(1, 4, device="mtia"))
        row.add_(1)

    body()
    drawn.zero_()
    row.zero_()
    graph, _ = capture(body)
    for _ in range(20):
        graph.replay()
    assert len(drawn.unique(dim=0)) == 20


def test_a_generator_of_ones_own_is_advanced_by_replays() -> None:
    generator = torch.Generator("mtia").manual_seed(11)
    default = torch.mtia.get_rng_state()

    def draw() -> torch.Tensor:
        return torch.randn(50, device="mtia", generator=generator)

    graph, y = capture(lambda: draw() + draw())
    graph.replay()
    graph.replay()
    replayed = y.tolist()
    assert torch.equal(torch.mtia.get_rng_state(), default)
    generator.manual_seed(11)
    eager = [draw() + draw() for _ in range(2)]
    assert replayed == eager[1].tolist()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randperm(50, device="mtia"),
        lambda: torch.multinomial(torch.ones(20, device="mtia"), 10),
        lambda: torch.poisson(torch.full((50,), 20.0, device="mtia")),
        lambda: torch.randint(1000, (50,), device="mtia"),
        lambda: torch.empty(50, device="mtia").exponential_(),
        lambda: torch.bernoulli(torch.full((50,), 0.5, device="mtia")),
    ],
)
def test_every_kind_of_draw_is_fresh_in_each_replay(draw: Callable[[], torch.Tensor]) -> None:
    graph, y = capture(draw)
    torch.manual_seed(5)
    graph.replay()
    first = y.tolist()
    graph.replay()
    second = y.tolist()
    torch.manual_seed(5)
    assert [first, second] == [draw().tolist(), draw().tolist()]
    assert first != second


# Host functions, profiler, errors ------------------------------------------------------------------------------------


def test_a_host_function_is_called_by_each_replay() -> None:
    x = torch.zeros(4, device="mtia")
    host = torch.zeros(4).pin_memory()
    seen: list[float] = []

    def body() -> None:
        x.add_(1)
        host.copy_(x, non_blocking=True)
        torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: seen.append(host[0].item()))
        x.mul_(2)

    graph, _ = capture(body)
    assert seen == []
    for _ in range(3):
        graph.replay()
    torch.mtia.synchronize()
    assert seen == [1.0, 3.0, 7.0]


def test_a_host_function_may_drop_the_last_reference_to_its_graph() -> None:
    graphs: list[torch.mtia.MTIAGraph] = []
    dropped = threading.Event()

    def drop() -> None:
        graphs.clear()
        dropped.set()

    graph, _ = capture(lambda: torch_mtia.launch_host_function(torch.mtia.current_stream(), drop))
    graphs.append(graph)
    del graph
    graphs[0].replay()
    torch.mtia.synchronize()
    assert dropped.is_set()


def test_the_profiler_shows_the_operators_of_a_replay() -> None:
    x = torch.rand(64, 64, device="mtia")
    graph, _ = capture(lambda: torch.sin(x @ x))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.MTIA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            graph.replay()
        torch.mtia.synchronize()
    names = [event.name for event in profile.events() if event.device_type == DeviceType.MTIA]
    assert sum("mm" in name for name in names) == 3
    assert sum("sin" in name for name in names) == 3


def test_an_error_in_the_data_is_raised_behind_the_replay() -> None:
    table = torch.rand(4, 2, device="mtia")
    index = torch.zeros(3, dtype=torch.long, device="mtia")
    F.embedding(index, table)
    graph, y = capture(lambda: F.embedding(index, table))
    graph.replay()
    torch.mtia.synchronize()
    index.fill_(9)
    graph.replay()
    with pytest.raises(IndexError):
        torch.mtia.synchronize()
    index.fill_(1)
    graph.replay()
    assert torch.equal(y.cpu(), table[1].cpu().expand(3, 2))


@pytest.mark.parametrize("setting", ["TORCH_MTIA_LAUNCH_BLOCKING", "TORCH_MTIA_DELAY"])
def test_debugging_modes_capture_and_replay(run_script: RunScript, setting: str) -> None:
    script = """
        import torch
        x = torch.ones(1000, device="mtia")
        side = torch.mtia.Stream()
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph):
            y = x * 2
            side.wait_stream(torch.mtia.current_stream())
            with torch.mtia.stream(side):
                z = y + 1
            torch.mtia.current_stream().wait_stream(side)
            z += torch.rand(1000, device="mtia") * 0
        for value in (1.0, 2.0):
            x.fill_(value)
            graph.replay()
            print(z.sum().item())
        del graph
    """
    environment: dict[str, Any] = {setting: "1"}
    assert run_script(script, **environment).output() == "3000.0\n5000.0\n"


def test_the_device_is_synchronized_while_another_thread_captures() -> None:
    stream, x = torch.Stream("mtia"), torch.ones(100, device="mtia")
    ended = threading.Event()

    def capture_often() -> None:
        try:
            for _ in range(300):
                graph = torch.mtia.MTIAGraph()
                with torch.mtia.graph(graph, stream=stream):
                    x + 1
        finally:
            ended.set()

    thread = threading.Thread(target=capture_often)
    thread.start()
    try:
        while not ended.is_set():
            torch.mtia.synchronize()
    finally:
        thread.join()
