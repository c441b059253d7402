"""The limit on how many buffers a kernel reads and writes, `torch_mtia.inductor.config.max_kernel_io_buffers`.

It holds in four places:
- where an operator is lowered (`prepare_operator`): what would be inlined into one expression with too many buffers is
  computed by kernels of its own first, and an operator that has too many by itself runs as its ATen kernel;
- where kernels are fused, and where a template is chosen (choices.py);
- where kernels are combined: Inductor's own option, combo_kernel_max_num_args (`limited`);
- where a kernel is written into the code (`check_kernel`): one that still has too many raises.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.exc import ShortenTraceback
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch.utils import _pytree as pytree

from torch_mtia.inductor import config


class TooManyBuffersError(ShortenTraceback):
    """Raised where a kernel cannot be split enough to respect `torch_mtia.inductor.config.max_kernel_io_buffers`.

    It is a RuntimeError, which Inductor and Dynamo pass on unwrapped. For a graph that cannot be cached, such as one
    with a loop, Inductor raises InductorError, whose `inner_exception` is this error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, first_useful_frame=None)


def limit() -> int | None:
    """max_kernel_io_buffers, if it is set. Raises ValueError where no kernel could keep to it."""
    value: int | None = config.max_kernel_io_buffers
    if value is not None and value < 2:
        raise ValueError(f"max_kernel_io_buffers={value}: a kernel reads one buffer and writes another; use 2 or more")
    return value


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """While it lasts, Inductor combines no more kernels into one than the limit allows."""
    most = limit()
    if most is None:
        yield
        return
    combined = min(inductor_config.combo_kernel_max_num_args, most)
    with inductor_config.patch(combo_kernel_max_num_args=combined):
        yield


def prepare_operator(node: torch.fx.Node, environment: dict[torch.fx.Node, Any]) -> bool:
    """Sees to it that the operator's kernel keeps to the limit; true if it can only as the ATen kernel.

    Args:
        node: a call of an operator that Inductor is about to lower.
        environment: what the nodes before it were lowered to.
    """
    most = limit()
    if most is None:
        return False
    operands = [environment.get(operand) for operand in node.all_input_nodes]
    boxes = [box for box in pytree.tree_leaves(operands) if isinstance(box, ir.TensorBox)]
    outputs = sum(isinstance(value, torch.Tensor) for value in pytree.tree_leaves(node.meta.get("val")))
    if "_foreach_" in str(node.target):  # a kernel for each element of the lists
        for box in boxes:
            box.realize()
        return sum(isinstance(argument, torch.fx.Node | list | tuple) for argument in node.args) + 1 > most
    while len(_buffers(boxes)) + outputs > most:
        inlined = [box for box in boxes if _is_inlined(box)]
        if not inlined:
            return True
        max(inlined, key=lambda box: len(_buffers([box]))).realize()
    return False


def check_kernel(name: str, source: str, operators: str) -> None:
    """Raises TooManyBuffersError if a kernel that is about to be launched has more pointers, and descriptors of
    buffers, than it may."""
    most = limit()
    signature = re.search(r"'signature': \{([^}]*)\}", source)
    if most is None or signature is None:
        return
    count = len(re.findall(r"'\*|'tensordesc<", signature[1]))  # in tuples too
    if count > most:
        raise TooManyBuffersError(
            f"the kernel {name} reads and writes {count} buffers, max_kernel_io_buffers allows {most}, and it cannot "
            f"be divided. It computes:\n{operators.strip() or 'a Triton kernel of the program itself'}"
        )


class ChecksKernels:
    """A part of the classes that write code around kernels: what they write keeps to the limit."""

    def define_kernel(
        self,
        kernel_name: str,
        kernel_body: str,
        metadata: str | None = None,
        gpu: bool = True,
        cpp_definition: str | None = None,
    ) -> None:
        if gpu:
            check_kernel(kernel_name, kernel_body, metadata or "")
        super().define_kernel(kernel_name, kernel_body, metadata, gpu, cpp_definition)  # type: ignore[misc]


def _buffers(boxes: list[ir.TensorBox]) -> set[str]:
    """Returns what is read for these operands: for one that is inlined, the buffers that its expression reads."""
    names: set[str] = set()
    for box in boxes:
        names |= set(box.get_read_names()) if _is_inlined(box) else {box.get_name()}
    return names


def _is_inlined(box: ir.TensorBox) -> bool:
    data: Any = box.data
    while isinstance(data, ir.BaseView):
        data = data.unwrap_view()
    return isinstance(data, ir.StorageBox) and not isinstance(data.data, ir.Buffer | ir.ReinterpretView)
