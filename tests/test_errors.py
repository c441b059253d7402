"""A mistake raises what PyTorch raises for it on other accelerators, and the device keeps working afterwards.

Arguments are checked at the call, however large they are and whatever the stream does. What depends on the data is
raised by the next synchronizing call, which is always the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

import torch_mtia

if TYPE_CHECKING:
    from tests.conftest import RunScript


@pytest.fixture(autouse=True)
def _the_device_keeps_working() -> Iterator[None]:
    yield
    x = torch.arange(5.0, device="mtia")
    assert (x * x + 1).relu().cumsum(0).tolist() == [1, 3, 8, 18, 35]
    large = torch.ones(2**22, device="mtia")
    assert (large * 2).add_(1)[-1].item() == 3


# Arguments -----------------------------------------------------------------------------------------------------------

NO_SUCH_DEVICE: dict[str, Callable[[], Any]] = {
    "empty": lambda: torch.empty(3, device="mtia:7"),
    "empty_strided": lambda: torch.empty_strided((3,), (1,), device="mtia:7"),
    "factory": lambda: torch.linspace(0, 1, 3, device="mtia:7"),
    "tensor": lambda: torch.tensor([1.0], device="mtia:7"),
    "to": lambda: torch.ones(3).to("mtia:7"),
    "between devices": lambda: torch.ones(3, device="mtia").to("mtia:7"),
    "module": lambda: torch.nn.Linear(2, 2).to("mtia:7"),
    "storage": lambda: torch.UntypedStorage(3, device="mtia:7"),
    "generator": lambda: torch.Generator("mtia:7"),
    "stream": lambda: torch.Stream("mtia:7"),
    "set_device": lambda: torch.mtia.set_device(7),
    "synchronize": lambda: torch.mtia.synchronize(7),
    "properties": lambda: torch.mtia.get_device_properties(7),
    "memory": lambda: torch.accelerator.memory_stats(7),
    "accelerator": lambda: torch.accelerator.synchronize(7),
    "current stream": lambda: torch.mtia.current_stream(7),
}


@pytest.mark.parametrize("name", NO_SUCH_DEVICE)
def test_a_device_that_does_not_exist(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"7.*TORCH_MTIA_DEVICES|TORCH_MTIA_DEVICES.*7"):
        NO_SUCH_DEVICE[name]()
    assert torch.mtia.current_device() == 0


SHAPES: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "copy": (lambda x: x.copy_(torch.ones(4)), r"size of tensor a \(3\) must match the size of tensor b \(4\)"),
    "copy to the host": (
        lambda x: torch.ones(4).copy_(x),
        r"size of tensor a \(4\) must match the size of tensor b \(3\)",
    ),
    "copy to more": (lambda x: x.copy_(torch.ones(2, 3)), r"must match|doesn't match"),
    "native": (lambda x: x * x[:2], r"size of tensor a \(3\) must match"),
    "fallback": (lambda x: torch.atan2(x, x[:2]), r"size of tensor a \(3\) must match"),
    "product": (lambda x: torch.mm(x.view(1, 3), x.view(1, 3)), r"cannot be multiplied \(1x3 and 1x3\)"),
    "cat": (lambda x: torch.cat([x.view(1, 3), x[:2].view(1, 2)]), "Sizes of tensors must match"),
    "negative": (lambda _: torch.empty(-1, device="mtia"), "negative dimension"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_match(name: str) -> None:
    call, message = SHAPES[name]
    with pytest.raises(RuntimeError, match=message):
        call(torch.ones(3, device="mtia"))


@contextmanager
def busy_stream() -> Iterator[None]:
    """The current stream does not get on with its queue inside; whoever waits for it inside fails."""
    gate = threading.Event()
    opened_in_time = []
    stream = torch.mtia.current_stream()
    stream.synchronize()
    torch_mtia.launch_host_function(stream, lambda: opened_in_time.append(gate.wait(timeout=30)))
    try:
        yield
    finally:
        gate.set()
    stream.synchronize()
    assert opened_in_time == [True], "a call waited for the stream"


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, device="mtia", dtype=dtype)


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "samples of fractional_max_pool2d": lambda: F.fractional_max_pool2d(
        f(2, 3, 8, 8), 2, output_size=4, _random_samples=f(1, 3, 2)
    ),
    "samples of fractional_max_pool3d": lambda: F.fractional_max_pool3d(
        f(2, 3, 8, 8, 8), 2, output_size=4, _random_samples=f(1, 3, 3)
    ),
    "summand of addmm": lambda: torch.addmm(f(2, 2), f(2, 4), f(4, 3)),
    "summand of addmm, more dimensions": lambda: torch.addmm(f(1, 2, 3), f(2, 4), f(4, 3)),
    "summand of _addmm_activation": lambda: torch._addmm_activation(f(2), f(2, 4), f(4, 3)),
    "dtype of addbmm": lambda: torch.addbmm(f(5, 6, dtype=torch.long), f(2, 5, 3), f(2, 3, 6)),
    "dtype of cdist": lambda: torch.cdist(f(3, 2, dtype=torch.long), f(3, 2)),
    "dtypes of cross": lambda: torch.cross(f(5, 3), f(5, 3, dtype=torch.long), dim=1),
    "dtypes of cross, the other way round": lambda: torch.cross(f(5, 3, dtype=torch.long), f(5, 3), dim=1),
    "dtypes of binary_cross_entropy": lambda: F.binary_cross_entropy(f(3), f(3, dtype=torch.long)),
    "dtype of nll_loss's weights": lambda: F.nll_loss(f(2, 3), f(2, dtype=torch.long), weight=f(3, dtype=torch.half)),
    "dtype of batch_norm's statistics": lambda: F.batch_norm(f(2, 3), f(3, dtype=torch.long), f(3)),
    "dtype of embedding_bag's table": lambda: F.embedding_bag(f(4, 3, dtype=torch.long), f(4, 3, dtype=torch.long)),
    "dtype of renorm": lambda: torch.renorm(f(3, 3, dtype=torch.long), 2, 0, 1),
    "dimension of renorm": lambda: torch.renorm(f(3, 3), 2, 2, 1),
    "dtype of index_fill's index": lambda: f(3).index_fill(0, f(1, dtype=torch.int), 1.0),
    "norm of nothing": lambda: torch.norm(f(0), -1),
    "dtype of a decomposition": lambda: torch.linalg.cholesky_ex(f(3, 3, dtype=torch.half)),
    "dtype of a pool": lambda: F.avg_pool3d(f(1, 4, 4, 4, dtype=torch.bfloat16), 2),
    "dtype of embedding_renorm's indices": lambda: torch.embedding_renorm_(f(2, 4), f(2), 1.0, 2.0),
    "dtype of max_pool2d's indices": lambda: torch.ops.aten.max_pool2d_with_indices_backward(
        f(1, 1, 2, 2), f(1, 1, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False, f(1, 1, 2, 2)
    ),
    "dtype of adaptive_max_pool2d's indices": lambda: torch.ops.aten.adaptive_max_pool2d_backward(
        f(1, 1, 2, 2), f(1, 1, 4, 4), f(1, 1, 2, 2)
    ),
    "dtype of adaptive_max_pool3d's indices": lambda: torch.ops.aten.adaptive_max_pool3d_backward(
        f(1, 1, 2, 2, 2), f(1, 1, 4, 4, 4), f(1, 1, 2, 2, 2)
    ),
    "dtype of fractional_max_pool2d's indices": lambda: torch.ops.aten.fractional_max_pool2d_backward(
        f(1, 1, 2, 2), f(1, 1, 4, 4), [2, 2], [2, 2], f(1, 1, 2, 2)
    ),
    "dtype of a scaler's counter": lambda: torch._amp_update_scale_(f(1), f(1), f(1), 2.0, 0.5, 2),
    "many tensors of a dtype that cat lacks": lambda: torch.cat([f(2).to(torch.float4_e2m1fn_x2)] * 20),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_raises_at_the_call_while_the_stream_is_busy(name: str) -> None:
    # Once more: what has been learned about the operator from the first call makes no difference.
    for _ in range(2):
        with busy_stream(), pytest.raises((RuntimeError, IndexError)):
            ARGUMENTS[name]()


LEARNS_NOTHING: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "no rows": (
        lambda: f(0, 2, dtype=torch.bool) @ f(2, 3, dtype=torch.bool),
        lambda: f(1, 2, dtype=torch.bool) @ f(2, 3, dtype=torch.bool),
    ),
    "no samples": (
        lambda: F.multi_margin_loss(f(0, 3), f(0, dtype=torch.long), weight=f(3, dtype=torch.half)),
        lambda: F.multi_margin_loss(f(2, 3), f(2, dtype=torch.long), weight=f(3, dtype=torch.half)),
    ),
    "no pairs": (
        lambda: F.pdist(f(1, 3, dtype=torch.half)),
        lambda: F.pdist(f(2, 3, dtype=torch.half)),
    ),
}


@pytest.mark.parametrize("name", LEARNS_NOTHING)
def test_a_call_without_data_says_nothing_about_dtypes(name: str) -> None:
    without_data, with_data = LEARNS_NOTHING[name]
    without_data()
    with busy_stream(), pytest.raises(RuntimeError, match=r"not implemented for|expected scalar type"):
        with_data()


DTYPES: dict[str, Callable[[], Any]] = {
    "compressed": lambda: torch.empty(2, 2, layout=torch.sparse_csr, device="mtia"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3, device="mtia"), 1.0, 0, torch.quint8),
    "native": lambda: torch.ones(3, device="mtia").to(torch.float8_e4m3fn) + 1,
    "native, large": lambda: torch.ones(2**20, device="mtia").to(torch.float8_e4m3fn) + 1,
    "native, with a number": lambda: torch.ones(3, device="mtia").to(torch.float8_e4m3fn) * 2,
    "fallback": lambda: torch.bincount(torch.ones(3, device="mtia").to(torch.float8_e4m3fn)),
    "fallback, large": lambda: torch.bincount(torch.ones(2**20, device="mtia").to(torch.float8_e4m3fn)),
}


@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_and_layouts_that_are_not_supported(name: str) -> None:
    with pytest.raises(
        NotImplementedError, match=r"not implemented for|from the '(Sparse|Quantized)\w+' backend|quantize"
    ):
        DTYPES[name]()


@pytest.mark.parametrize("large", [False, True])
def test_operands_on_two_devices(large: bool) -> None:
    there, host = (torch.ones(2**20 if large else 3, device=where) for where in ("mtia", "cpu"))
    for call in (torch.add, torch.atan2):
        with pytest.raises(
            RuntimeError, match=r"Expected all tensors to be on the same device.*(mtia:0.*cpu|cpu.*mtia:0)"
        ):
            call(there, host)


# Data ----------------------------------------------------------------------------------------------------------------


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="mtia")


DATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "index": lambda x: x[indices(1, 5)],
    "index_select": lambda x: x.index_select(0, indices(5)),
    "gather": lambda x: x.gather(0, indices(5)),
    "scatter_": lambda x: x.clone().scatter_(0, indices(5), 1.0),
    "index_put_": lambda x: x.clone().index_put_((indices(5),), torch.tensor(1.0)),
    "take": lambda x: x.take(indices(7)),
    "embedding": lambda x: F.embedding(indices(9), x.view(3, 1)),
    "nll_loss": lambda x: F.nll_loss(x.view(1, 3), indices(8)),
    "inv": lambda x: torch.linalg.inv(torch.zeros(2, 2, device=x.device)),
    "cholesky": lambda x: torch.linalg.cholesky(torch.full((2, 2), -1.0, device=x.device)),
    "multinomial": lambda x: torch.multinomial(-x, 1),
    "bincount": lambda _: torch.bincount(indices(-1)),
    "large": lambda _: torch.ones(2**20, device="mtia").index_select(0, indices(2**20)),
}


def until_done(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    call(x)
    torch.mtia.synchronize()


@pytest.mark.parametrize("name", DATA)
def test_a_wrong_value_raises_by_the_next_synchronization(name: str) -> None:
    x = torch.arange(3.0, device="mtia")
    with pytest.raises((IndexError, RuntimeError)):
        until_done(DATA[name], x)
    torch.mtia.synchronize()  # it was reported once
    assert x.tolist() == [0, 1, 2]


WAITS_WITHOUT_RAISING: dict[str, Callable[[torch.Tensor], Any]] = {
    "small fall back": lambda x: torch.bincount(x.long()),
    "large fall back": lambda _: torch.bincount(torch.ones(2**20, device="mtia", dtype=torch.long)),
    "copy from the host": lambda x: x.copy_(torch.ones(3)),
    "large copy from the host": lambda _: torch.ones(2**20).to("mtia"),
    "converting copy from the host": lambda _: torch.ones(2**20).to("mtia", torch.half),
    "event": lambda _: torch.mtia.current_stream().record_event().synchronize(),
    "query": lambda _: torch.mtia.current_stream().query(),
    "first call": lambda _: torch.ones(2, 2, device="mtia", dtype=torch.int16).cumsum(0),
    "decomposition": lambda _: torch.linalg.cholesky_ex(torch.eye(3, device="mtia"), check_errors=True),
}
SYNCHRONIZES: dict[str, Callable[[torch.Tensor], Any]] = {
    "stream": lambda _: torch.mtia.current_stream().synchronize(),
    "device": lambda _: torch.mtia.synchronize(),
    "accelerator": lambda _: torch.accelerator.synchronize(),
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0]),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "copy to the host": lambda x: torch.empty(3).copy_(x),
    "converting copy to the host": lambda x: torch.empty(3, dtype=torch.half).copy_(x),
}


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("name", WAITS_WITHOUT_RAISING)
def test_an_error_waits_for_a_synchronizing_call(name: str, queued: bool) -> None:
    x = torch.arange(3.0, device="mtia")
    if queued:
        torch.ones(2**20, device="mtia").add_(1)
    x.index_select(0, indices(5))
    WAITS_WITHOUT_RAISING[name](x)
    with pytest.raises(IndexError, match="index_select"):
        torch.mtia.synchronize()


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("name", SYNCHRONIZES)
def test_the_first_synchronizing_call_raises_the_error(name: str, queued: bool) -> None:
    x = torch.arange(3.0, device="mtia")
    if queued:
        torch.ones(2**20, device="mtia").add_(1)
    x.index_select(0, indices(5))
    with pytest.raises(IndexError, match="index_select"):
        SYNCHRONIZES[name](x)
    torch.mtia.synchronize()


def test_a_fall_back_raises_its_own_error_and_leaves_the_others() -> None:
    x = torch.arange(3.0, device="mtia")
    x.index_select(0, indices(5))
    with pytest.raises(RuntimeError, match="bincount"):
        torch.bincount(indices(-1))
    with pytest.raises(IndexError, match="index_select"):
        torch.mtia.synchronize()


def test_a_call_that_waits_raises_its_own_error_and_leaves_the_others() -> None:
    x = torch.arange(3.0, device="mtia")
    x.index_select(0, indices(5))
    with pytest.raises(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        torch.linalg.cholesky_ex(torch.zeros(2, 2, device="mtia"), check_errors=True)
    with pytest.raises(IndexError, match="index_select"):
        torch.mtia.synchronize()


def test_the_error_of_a_singular_matrix_is_that_of_linear_algebra() -> None:
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):  # type: ignore[attr-defined]
        torch.linalg.inv(torch.zeros(2, 2, device="mtia"))


def test_an_error_while_another_stream_works_leaves_that_work_alone() -> None:
    side = torch.Stream("mtia")
    with torch.mtia.stream(side):
        y = torch.zeros(2**22, device="mtia")
        for _ in range(10):
            y.add_(1)
    with pytest.raises((IndexError, RuntimeError)):
        until_done(DATA["index_select"], torch.arange(3.0, device="mtia"))
    side.synchronize()
    assert (y.cpu() == 10).all()


def test_launch_blocking_raises_at_the_call(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        x = torch.arange(3., device="mtia")
        index = torch.tensor([5], device="mtia")
        for wrong in (lambda: x.index_select(0, index), lambda: x[index]):
            try:
                wrong()
            except (IndexError, RuntimeError):
                print("at the call")
        torch.mtia.synchronize()
        assert (x + 1).tolist() == [1, 2, 3]
        """,
        TORCH_MTIA_LAUNCH_BLOCKING="1",
    )
    assert finished.output() == "at the call\n" * 2


def test_launch_blocking_is_not_recommended_where_it_is_set(run_script: RunScript) -> None:
    script = """
        import torch
        x = torch.arange(3., device="mtia")
        index = torch.tensor([1], device="mtia")
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph):
            x.index_select(0, index)
        index.fill_(7)
        try:
            graph.replay()
            torch.mtia.synchronize()
        except (IndexError, RuntimeError) as error:
            assert "while aten::index_select ran on mtia:0" in str(error)
            print("TORCH_MTIA_LAUNCH_BLOCKING=1" in str(error))
    """
    assert run_script(script).output() == "True\n"
    assert run_script(script, TORCH_MTIA_LAUNCH_BLOCKING="1").output() == "False\n"


def test_with_launch_blocking_threads_that_replay_in_one_stream_get_their_own_errors(run_script: RunScript) -> None:
    finished = run_script(
        """
        import threading, torch
        x = torch.arange(3., device="mtia")
        indices = [torch.tensor([1], device="mtia") for _ in range(3)]
        graphs = [torch.mtia.MTIAGraph() for _ in indices]
        for graph, index in zip(graphs, indices):
            with torch.mtia.graph(graph):
                result = x.index_select(0, index)
        indices[-1].fill_(7)
        stream = torch.mtia.current_stream()
        wrong = []

        def replay(graph, fails):
            with torch.mtia.stream(stream):
                for _ in range(300):
                    try:
                        graph.replay()
                        raised = False
                    except (IndexError, RuntimeError):
                        raised = True
                    if raised != fails:
                        wrong.append(fails)

        threads = [threading.Thread(target=replay, args=(graph, graph is graphs[-1])) for graph in graphs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(wrong)
        """,
        TORCH_MTIA_LAUNCH_BLOCKING="1",
    )
    assert finished.output() == "[]\n"
