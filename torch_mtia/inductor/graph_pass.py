"""Rewrites graphs on the device before they are lowered, where upstream's lowerings give wrong results or refuse.

Inductor runs it after its own passes: it is the `device_custom_pass` of `register_backend_for_device`. Each rewriter
below takes a node's arguments, by name, and returns the node that replaces it, or None to keep it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch._inductor.fx_utils import FakeTensorUpdater
from torch.fx import Graph, GraphModule, Node

from torch_mtia import torch_version
from torch_mtia.backend import device_type
from torch_mtia.inductor.cache_key import identity
from torch_mtia.scopes import Overlay, copies

aten, prims = torch.ops.aten, torch.ops.prims

Arguments = dict[str, Any]
Rewriter = Callable[[Graph, Node, Arguments], "Node | None"]
_REWRITERS: dict[torch._ops.OpOverload, Rewriter] = {}


class GraphPass(CustomGraphModulePass):
    def __call__(self, gm: GraphModule) -> None:
        nodes = list(_nodes_on_the_device(gm.graph))
        overlaps = config._micro_pipeline_tp and not torch.distributed.is_nccl_available()
        if not nodes and not overlaps:
            return
        updater = FakeTensorUpdater(gm)
        for node in nodes:
            with gm.graph.inserting_before(node):
                replacement = _REWRITERS[node.target](gm.graph, node, _arguments(node))  # type: ignore[index]
            if replacement is not None:
                replacement.meta = dict(node.meta)
                node.replace_all_uses_with(replacement)
                gm.graph.erase_node(node)
        if overlaps:
            _overlap_products_with_collectives(gm.graph)
        updater.incremental_update()

    def uuid(self) -> str:
        return identity()


def _nodes_on_the_device(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.target in _REWRITERS and isinstance(value, torch.Tensor) and value.device.type == device_type():
            yield node


def _arguments(node: Node) -> Arguments:
    """Returns the arguments by name, with the defaults of those that are left out."""
    found: Arguments = {}
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        default = argument.default_value if argument.has_default_value() else None
        found[argument.name] = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, default)
    return found


def _rewrites(*operators: torch._ops.OpOverload) -> Callable[[Rewriter], Rewriter]:
    def register(rewriter: Rewriter) -> Rewriter:
        _REWRITERS.update(dict.fromkeys(operators, rewriter))
        return rewriter

    return register


def _call(graph: Graph, operator: Any, *arguments: Any) -> Node:
    return graph.call_function(operator, *arguments)


def _value(node: Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


# argmax --------------------------------------------------------------------------------------------------------------


def _of_one_dimension(graph: Graph, node: Node, given: Arguments) -> Node | None:
    """Upstream's lowering counts the elements of several dimensions in the order of memory, where their values are
    computed in the same kernel from a tensor that is not contiguous."""
    rank = _value(given["self"]).dim()
    if given["dim"] is not None or rank < 2:
        return None
    flat = graph.call_function(aten.reshape.default, (given["self"], [-1]))
    index = _call(graph, node.target, (flat, 0))
    return graph.call_function(aten.reshape.default, (index, [1] * rank)) if given["keepdim"] else index


if torch_version.TORCH < (2, 15):
    _rewrites(aten.argmax.default, aten.argmin.default)(_of_one_dimension)


# Integer division ----------------------------------------------------------------------------------------------------


@_rewrites(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default)
def _floor_divide(graph: Graph, node: Node, given: Arguments) -> Node | None:
    """Upstream's quotients of narrow integers are int32 in the code: what follows does not wrap around, and reductions
    in loops do not compile. And it negates both numbers where the divisor is negative, although the least number has
    no negative: where both are negative, the quotient is one more than that of a number nearer to 0 by the divisor."""
    dtype = _value(node).dtype
    if given.get("rounding_mode", "floor") != "floor" or dtype.is_floating_point or dtype == torch.bool:
        return None
    a, b = _cast(graph, given["self"], dtype), _cast(graph, given["other"], dtype)
    if dtype.itemsize < 4:
        wide = graph.call_function(aten.div.Tensor_mode, (_cast(graph, a, torch.int32), b), {"rounding_mode": "floor"})
        result: Node = _cast(graph, wide, dtype)
        return result
    if not _is_tensor(b) and not (isinstance(b, int) and b < 0):
        return None
    smaller = graph.call_function(aten.maximum.default, (a, b)) if _is_tensor(b) else a
    are_negative = graph.call_function(aten.lt.Scalar, (smaller, 0))
    nearer = graph.call_function(aten.sub.Tensor, (a, b))
    dividend = graph.call_function(aten.where.self, (are_negative, nearer, a))
    quotient = graph.call_function(aten.div.Tensor_mode, (dividend, b), {"rounding_mode": "floor"})
    more = graph.call_function(aten.add.Tensor, (quotient, 1))
    return graph.call_function(aten.where.self, (are_negative, more, quotient))


def _cast(graph: Graph, value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Node) or ("val" in value.meta and not _is_tensor(value, but=dtype)):
        return value
    return graph.call_function(prims.convert_element_type.default, (value, dtype))


def _is_of(node: Node, dtype: torch.dtype) -> bool:
    return _value(node).dtype == dtype


def _is_tensor(value: Any, but: torch.dtype | None = None) -> bool:
    """Whether a node stands for a tensor, of another dtype than that."""
    if not isinstance(value, Node):
        return False
    known = value.meta.get("val")
    return known is None or (isinstance(known, torch.Tensor) and known.dtype != but)


# Products ------------------------------------------------------------------------------------------------------------


@_rewrites(aten._scaled_mm.default)
def _with_the_scale_of_the_result(graph: Graph, node: Node, given: Arguments) -> Node | None:
    """Upstream's lowering takes the argument and makes nothing of it."""
    dtype = _value(node).dtype
    if given["scale_result"] is None or dtype.itemsize > 1:
        return None
    operands = (given[name] for name in ("self", "mat2", "scale_a", "scale_b", "bias"))
    product = _call(graph, node.target, (*operands, None, torch.float32, given["use_fast_accum"]))
    scale = graph.call_function(aten.reshape.default, (given["scale_result"], []))
    inverse = graph.call_function(aten.reciprocal.default, (scale,))
    result: Node = _cast(graph, graph.call_function(aten.mul.Tensor, (product, inverse)), dtype)
    return result


@_rewrites(aten.addmm.default, aten.baddbmm.default)
def _with_factors_that_count(graph: Graph, node: Node, given: Arguments) -> Node | None:
    """Upstream's templates multiply what beta or alpha leave out, which may be NaN, by 0. And a bias without dimensions
    is an IndexError with max_autotune, and otherwise dropped where ATen's kernel is the quickest."""
    operands, factors = _counted(graph, *given.values())
    if operands == tuple(given.values())[:3]:
        return None
    return _call(graph, node.target, operands, factors)


@_rewrites(aten.addmm.dtype, aten.baddbmm.dtype)
def _sum_of_another_dtype(graph: Graph, node: Node, given: Arguments) -> Node:
    """The lowerings of addmm and baddbmm are taken for these as well, and have no such argument."""
    dtype = given.pop("out_dtype")
    (bias, a, b), factors = _counted(graph, *given.values())
    is_batched = _value(node).dim() == 3
    if _is_of(a, dtype):
        return graph.call_function((aten.baddbmm if is_batched else aten.addmm).default, (bias, a, b), factors)
    product = _product_of_another_dtype(graph, node, {"a": a, "b": b, "out_dtype": dtype})
    product = product or graph.call_function((aten.bmm if is_batched else aten.mm).dtype, (a, b, dtype))
    if factors["alpha"] != 1:
        product = graph.call_function(aten.mul.Tensor, (product, factors["alpha"]))
    return graph.call_function(aten.add.Tensor, (product, bias), {"alpha": factors["beta"]})


@_rewrites(aten.mm.dtype, aten.bmm.dtype)
def _product_of_another_dtype(graph: Graph, node: Node, given: Arguments) -> Node | None:
    """With native_matmul, upstream's has the dtype of the operands and not the one that was asked for."""
    if not config.triton.native_matmul:
        return None
    a, b, dtype = given.values()
    operator = aten.mm if _value(node).dim() == 2 else aten.bmm
    return graph.call_function(operator.default, (_cast(graph, a, dtype), _cast(graph, b, dtype)))


def _counted(
    graph: Graph, bias: Node, a: Node, b: Node, beta: complex, alpha: complex
) -> tuple[tuple[Node, Node, Node], dict[str, Any]]:
    """Returns the operands and the factors of an equal sum with no factor of 0 and no bias without dimensions."""
    if beta == 0:
        beta, bias = 1, _zeros(graph, bias)
    if alpha == 0:
        alpha, a, b = 1, _zeros(graph, a), _zeros(graph, b)
    if _value(bias).dim() == 0:
        value, bias = _value(bias), graph.call_function(aten.reshape.default, (bias, [1]))
        bias.meta["val"] = value.reshape(1)
    return (bias, a, b), {"beta": beta, "alpha": alpha}


def _zeros(graph: Graph, like: Node) -> Node:
    """Returns zeros of the same shape, which what is there, such as NaN, does not change."""
    value = _value(like)
    yes, zero = (
        graph.call_function(aten.full.default, ([], number), {"dtype": dtype, "device": value.device})
        for number, dtype in ((True, torch.bool), (0, value.dtype))
    )
    zeros = graph.call_function(aten.where.self, (yes, zero, like))
    zeros.meta["val"] = value
    return zeros


# Products and collectives -------------------------------------------------------------------------------------------


def _overlap_products_with_collectives(graph: Graph) -> None:
    """Runs upstream's pass, which does so where the wheel has NCCL, as if it had."""
    from torch._inductor.fx_passes import micro_pipeline_tp

    distributed = Overlay(torch.distributed, is_nccl_available=lambda: True)
    names = {"torch": Overlay(torch, distributed=distributed), "log": logging.getLogger(__name__)}
    (overlap,) = copies(micro_pipeline_tp, ["micro_pipeline_tp_pass"], {"is_nccl_available"}, **names).values()
    overlap(graph)
