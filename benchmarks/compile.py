"""torch.compile on mtia against torch.compile on the CPU (Inductor's C++), and against eager PyTorch on the CPU.

python benchmarks/compile.py --threads 1
python benchmarks/compile.py --cases 'softmax.*inductor'
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from compile_programs import PROGRAMS, Program
from timing import Bar, Case, Group, Side, main, on
from torch.utils import _pytree as pytree

SEED = 0
PROGRAM_GROUP = Group("the programs against Inductor's C++", Bar(ratio=1.3))
NOT_SLOWER = Bar(ratio=1.0)


def side(device: str, program: Program, wrap: Callable[[Any], Any]) -> Side:
    torch.manual_seed(SEED)
    operands = [operand.to(device) for operand in program.operands()]
    torch._dynamo.reset()
    function = wrap(program.function)
    outputs: list[Any] = [None]

    def run() -> None:
        outputs[0] = function(*operands)

    def result() -> object:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), program.compared(outputs[0]))

    return on(device, run, result)


def cases(program: Program) -> list[Case]:
    def case(peer: str, wrap: Callable[[Any], Any], group: Group | None) -> Case:
        return Case(
            f"{program.name}: {peer}",
            ours=lambda: side("mtia", program, torch.compile),
            peer=lambda: side("cpu", program, wrap),
            peer_name=peer,
            bar=NOT_SLOWER,
            group=group,
            tolerance=program.tolerance,
        )

    return [case("inductor", torch.compile, PROGRAM_GROUP), case("eager", lambda function: function, None)]


CASES = [case for program in PROGRAMS for case in cases(program)]

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
