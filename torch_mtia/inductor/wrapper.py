"""Writes the Python code that launches kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config, ir
from torch._inductor.codegen.python_wrapper_mtia import PythonWrapperMtia
from torch._inductor.codegen.wrapper import AllocateLine, PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.utils import IndentedBuffer

from torch_mtia.backend import device_type
from torch_mtia.inductor import guardrails


class _AllocatesForMTIA(guardrails.ChecksKernels, PythonWrapperCodegen):
    """What both wrappers do."""

    def make_allocation(self, name: str, device: torch.device, *args: Any, **kwargs: Any) -> str:
        """By the quick function, which upstream takes for the devices that it lists. It allocates on ours."""
        if device.type == device_type():
            device = torch.device("mtia", device.index)
        return super().make_allocation(name, device, *args, **kwargs)  # type: ignore[no-any-return,no-untyped-call]

    def writeline(self, line: Any) -> None:
        if isinstance(line, AllocateLine) and line.comm_buffer:
            line = _AllocateForCollectives(self, line.node, comm_buffer=True)
        super().writeline(line)  # type: ignore[no-untyped-call]


class _AllocateForCollectives(AllocateLine):
    """Allocates symmetric memory, which before PyTorch 2.15 is written with the device type cuda."""

    def _codegen_comm_buffer(self, code: IndentedBuffer) -> None:
        written = IndentedBuffer()
        super()._codegen_comm_buffer(written)
        code.splice(written.getvalue().replace('torch.device("cuda:', f'torch.device("{device_type()}:'))


class MTIASubgraphWrapper(_AllocatesForMTIA, SubgraphPythonWrapperCodegen):
    """Writes functions that the main one calls: branches, bodies of loops, parts between what no graph can capture."""


class MTIAWrapper(_AllocatesForMTIA, PythonWrapperMtia):
    """Writes the main function."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: ir.GraphPartitionSignature | None = None,
    ) -> PythonWrapperCodegen:
        if not is_subgraph:
            return MTIAWrapper()  # type: ignore[no-untyped-call]
        assert subgraph_name is not None
        assert parent_wrapper is not None
        return MTIASubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)

    def write_header(self) -> None:
        super().write_header()
        # In wheels without MTIA, the function that upstream's code allocates with only raises.
        self.header.writeline("from torch_mtia._C import DeviceGuard, _empty_strided as empty_strided_mtia")

    def generate_after_suffix(self, result: IndentedBuffer) -> None:
        super().generate_after_suffix(result)
        prepare = "prepare_runner(runner)" if config.graph_partition else "prepare(call)"
        result.writeline(f"from torch_mtia.inductor.prepared_call import {prepare.split('(')[0]}")
        result.writeline(f"call = {prepare}")
