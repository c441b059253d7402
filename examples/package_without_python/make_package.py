"""Makes the package that main.cpp runs: a small network for any number of rows.

python make_package.py model.pt2
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).softmax(1)  # type: ignore[no-any-return]


def main(path: str, device: str = "mtia") -> None:
    model = Classifier().to(device).eval()
    rows = torch.export.Dim("rows", max=1024)
    with torch.no_grad():
        program = torch.export.export(model, (torch.zeros(2, 16, device=device),), dynamic_shapes=({0: rows},))
        torch._inductor.aoti_compile_and_package(program, package_path=path)


if __name__ == "__main__":
    main(sys.argv[1])
