"""TORCH_MTIA_POISON: fresh memory is NaN, freed memory is 0xCC, and correct programs do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunScript

# `seen(address, size)` are the bytes at an address of the device.
SEEN = """
import torch
def seen(address, size):
    torch.mtia.synchronize()
    storage = torch._C._construct_storage_from_data_pointer(address, torch.device("mtia:0"), size)
    return set(torch.empty(0, dtype=torch.uint8, device="mtia").set_(storage).cpu().tolist())
"""


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]
)
def test_fresh_memory_is_nan(run_script: RunScript, dtype: str) -> None:
    text = f"""
        import torch
        for shape in ((1,), (1000,), (3000, 1000)):
            x = torch.empty(shape, dtype=torch.{dtype}, device="mtia")
            print(bool(x.cpu().to(torch.complex64 if x.is_complex() else torch.float32).isnan().all()))
            del x
    """
    assert run_script(text, TORCH_MTIA_POISON="1").output().split() == ["True"] * 3


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TORCH_MTIA_DELAY": "1"},
        {"TORCH_MTIA_LAUNCH_BLOCKING": "1"},
        {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        {"TORCH_MTIA_SANITIZE": "streams,memory,init,kernels,numbers"},
        {"TORCH_MTIA_PRIVATEUSE1": "npu"},
    ],
    ids=lambda environment: "-".join(environment.values()) or "plain",
)
def test_memory_is_filled_when_it_changes_hands(run_script: RunScript, environment: dict[str, Any]) -> None:
    device = environment.get("TORCH_MTIA_PRIVATEUSE1", "mtia")
    text = (
        SEEN.replace("torch.mtia", "torch.accelerator").replace("mtia", device)
        + f"""
for count in (100, 3_000_000):
    x = torch.ones(count, device="{device}")
    address = x.data_ptr()
    del x
    freed = seen(address, 4 * count)
    x = torch.empty(count, device="{device}")
    print(x.data_ptr() == address, freed == {{0xCC}}, seen(address, 4 * count) == {{0xFF}})
    del x
"""
    )
    finished = run_script(text, TORCH_MTIA_POISON="1", **environment)
    assert finished.output().split() == ["True"] * 6
    if "TORCH_MTIA_SANITIZE" in environment:  # it does not see the fills
        assert "Use after free" in finished.stderr
        assert "Uninitialized" in finished.stderr


def test_nothing_is_filled_without_the_setting(run_script: RunScript) -> None:
    text = (
        SEEN
        + """
x = torch.ones(100, device="mtia")
address = x.data_ptr()
del x
freed = seen(address, 400)
x = torch.empty(100, device="mtia")
print(0xCC in freed, 0xFF in seen(address, 400))
"""
    )
    assert run_script(text).output().split() == ["False", "False"]


def test_memory_that_a_stream_still_uses_is_filled_afterwards(run_script: RunScript) -> None:
    text = (
        SEEN
        + """
side, main = torch.Stream("mtia"), torch.mtia.current_stream()
for _ in range(20):
    x = torch.ones(100_000, device="mtia")
    address = x.data_ptr()
    side.wait_stream(main)
    with torch.mtia.stream(side):
        y = x + 1
        x.record_stream(side)
    del x
    z = torch.full((100_000,), 5.0, device="mtia")
    main.wait_stream(side)
    assert bool((y.cpu() == 2).all()) and bool((z.cpu() == 5).all())
del z  # which has the memory of x if the other stream was done
torch.mtia.synchronize()
torch.empty(1, device="mtia")  # the allocator sees that the stream is done
print(seen(address, 400_000) <= {0xCC, 0xFF})
"""
    )
    assert run_script(text, TORCH_MTIA_POISON="1", TORCH_MTIA_DELAY="1").output() == "True\n"
    assert run_script(text, TORCH_MTIA_POISON="1").output() == "True\n"


def test_work_that_allocates_while_it_runs_keeps_what_it_wrote(run_script: RunScript) -> None:
    text = """
        import torch, torch_mtia
        x = torch.randn(300, 300, device="mtia")
        expected = torch.linalg.svdvals(x.cpu())
        for _ in range(20):
            values = torch.linalg.svdvals(x)
            mask = torch.nonzero(x > 0)
            torch.testing.assert_close(values.cpu(), expected)
            assert mask.cpu().equal(torch.nonzero(x.cpu() > 0))
        print("same")
    """
    environments: list[dict[str, Any]] = [{}, {"TORCH_MTIA_DELAY": "1"}, {"TORCH_MTIA_LAUNCH_BLOCKING": "1"}]
    for environment in environments:
        assert run_script(text, TORCH_MTIA_POISON="1", **environment).output() == "same\n"


def test_memory_of_a_graph_is_left_to_its_replays(run_script: RunScript) -> None:
    text = """
        import torch
        x = torch.ones(1000, device="mtia")
        (x + 1).sum()
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph):
            inside = torch.empty(1000, device="mtia")  # written between replays
            y = (inside + x) * 2
        inside.copy_(x)
        for _ in range(3):
            graph.replay()
            print(y.sum().item())
        del inside
        graph.replay()
        print(y.sum().item())
    """
    assert run_script(text, TORCH_MTIA_POISON="1").output().split() == ["4000.0"] * 4


def test_a_model_trains_as_ever(run_script: RunScript) -> None:
    text = """
        import torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
        x, y = torch.randn(32, 16), torch.randn(32, 4)
        model, x, y = model.to("mtia"), x.to("mtia"), y.to("mtia")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(loss.item())
    """
    assert run_script(text, TORCH_MTIA_POISON="1").output() == run_script(text).output()
