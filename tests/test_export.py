"""torch.export: programs of mtia are exported, kept in files, and run as they are or compiled."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from tests.compiled import generated

Tensor = torch.Tensor


def test_an_exported_program_runs_compiled() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).to("mtia")
    x = torch.randn(3, 4).to("mtia")
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(generated(program.module(), x)[0], model(x))


def test_a_program_from_a_file_has_its_weights_on_the_device(tmp_path: Path) -> None:
    class Model(torch.nn.Linear):
        calls: Tensor

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) + torch.arange(8, device=x.device)

    model = Model(4, 8)
    model.register_buffer("calls", torch.zeros((), dtype=torch.int64))
    model.to("mtia")
    x = torch.randn(3, 4).to("mtia")
    path = str(tmp_path / "program.pt2")
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)), path)
    loaded = torch.export.load(path).module()
    assert {tensor.device.type for tensor in loaded.state_dict().values()} == {"mtia"}
    for rows in (3, 7):
        x = torch.randn(rows, 4).to("mtia")
        assert torch.equal(loaded(x), model(x))
    assert loaded.get_buffer("calls").item() == 2


ATTENTION = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default


def operands(batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(batch, 2, length, 16).to("mtia") for _ in range(3))  # type: ignore[return-value]


def test_attention_of_any_length_is_one_operator() -> None:
    class Attention(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value)

    sizes = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(Attention(), operands(3, 20), dynamic_shapes=(sizes, sizes, sizes))
    program = exported.run_decompositions()
    assert ATTENTION in [node.target for node in program.graph.nodes]
    for arguments in (operands(3, 20), operands(5, 33)):
        expected = F.scaled_dot_product_attention(*arguments)
        assert torch.equal(program.module()(*arguments), expected)
        result, code = generated(program.module(), *arguments, dynamic=True)
        assert torch.equal(result, expected)
        assert f"torch.ops.{ATTENTION}(" in code


def test_compiled_attention_gives_its_logarithms_too() -> None:
    compiled = torch.compile(lambda *arguments: ATTENTION(*arguments)[:2], dynamic=True)
    for arguments in (operands(3, 20), operands(4, 24)):
        attended, logsumexp = compiled(*arguments)
        torch.testing.assert_close(attended, F.scaled_dot_product_attention(*arguments))
        scores = arguments[0] @ arguments[1].transpose(-1, -2) / 4
        torch.testing.assert_close(logsumexp, scores.logsumexp(-1))
