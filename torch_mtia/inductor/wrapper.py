"""Writes the Python code that launches kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.python_wrapper_mtia import PythonWrapperMtia
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from torch_mtia.door import device_type
from torch_mtia.inductor import guardrails


class MTIAWrapper(PythonWrapperMtia):
    """Upstream's wrapper for mtia, which checks that kernels keep to the limit on buffers."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: ir.GraphPartitionSignature | None = None,
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            return PythonWrapperMtia.create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures)
        return MTIAWrapper()  # type: ignore[no-untyped-call]

    def make_allocation(self, name: str, device: torch.device, *args: Any, **kwargs: Any) -> str:
        """By the quick function, which upstream takes for the devices that it lists. It allocates on ours."""
        if device.type == device_type():
            device = torch.device("mtia", device.index)
        return super().make_allocation(name, device, *args, **kwargs)  # type: ignore[no-any-return,no-untyped-call]

    def define_kernel(
        self,
        kernel_name: str,
        kernel_body: str,
        metadata: str | None = None,
        gpu: bool = True,
        cpp_definition: str | None = None,
    ) -> None:
        guardrails.check_kernel(kernel_name, kernel_body, metadata or "")
        super().define_kernel(kernel_name, kernel_body, metadata, gpu, cpp_definition)
