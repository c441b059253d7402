"""TORCH_MTIA_DELAY: programs that forget to synchronize get wrong data, programs that do not get right data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunScript

SEEDS = ("1", "2", "12345")

PRODUCER = """
import torch
side = torch.Stream("mtia")
main = torch.mtia.current_stream()
wrong = 0
for _ in range(5):
    x = torch.zeros(1000, device="mtia")
    side.wait_stream(main)
    with torch.mtia.stream(side):
        x.fill_(1)
    {synchronization}
    wrong += not bool((x.cpu() == 1).all())
    torch.mtia.synchronize()
print(wrong)
"""

CONSUMER = """
import torch
side = torch.Stream("mtia")
main = torch.mtia.current_stream()
wrong = 0
for _ in range(5):
    x = torch.ones(100_000, device="mtia")
    side.wait_stream(main)
    with torch.mtia.stream(side):
        y = x + 1
    {synchronization}
    del x
    z = torch.full((100_000,), -7.0, device="mtia")  # takes the memory of x
    main.synchronize()
    side.synchronize()
    wrong += not bool((y.cpu() == 2).all())
print(wrong)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("program", "synchronization"),
    [(PRODUCER, "main.wait_stream(side)"), (CONSUMER, "x.record_stream(side)")],
    ids=["wait_stream", "record_stream"],
)
def test_a_missing_synchronization_always_shows(
    run_script: RunScript, program: str, synchronization: str, seed: str
) -> None:
    assert run_script(program.format(synchronization="pass"), TORCH_MTIA_DELAY=seed).output().split() == ["5"]
    assert run_script(program.format(synchronization=synchronization), TORCH_MTIA_DELAY=seed).output().split() == ["0"]


def test_a_model_trains_as_ever(run_script: RunScript) -> None:
    text = """
        import torch
        torch.manual_seed(0)
        model = torch.nn.Linear(16, 4)
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
    assert run_script(text, TORCH_MTIA_DELAY="3").output() == run_script(text).output()
