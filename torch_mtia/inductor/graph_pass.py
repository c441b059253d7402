"""Rewrites graphs on the device before they are lowered, where upstream's lowerings give wrong results or refuse.

Inductor runs it after its own passes: it is the `device_custom_pass` of `register_backend_for_device`. Each rewriter
below takes a node's arguments, by name, and returns the node that replaces it, or None to keep it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch._inductor.fx_utils import FakeTensorUpdater, get_node_storage
from torch.fx import Graph, GraphModule, Node

from torch_mtia import torch_version
from torch_mtia.backend import device_type
from torch_mtia.inductor.cache_key import identity
from torch_mtia.scopes import Overlay, copies

aten, prims = torch.ops.aten, torch.ops.prims

Arguments = dict[str, Any]
Rewriter = Callable[[Graph, Node, Arguments], "Node | None"]
AnyRewriter = TypeVar("AnyRewriter", bound=Rewriter)
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
                _erase(gm.graph, node)
        if overlaps:
            _overlap_products_with_collectives(gm.graph)
        updater.incremental_update()

    def uuid(self) -> str:
        return identity()


def _erase(graph: Graph, node: Node) -> None:
    """Erases a node, and what only that used."""
    inputs = node.all_input_nodes
    graph.erase_node(node)
    for each in inputs:
        if not each.users and not each.is_impure():
            _erase(graph, each)


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


def _rewrites(*operators: torch._ops.OpOverload) -> Callable[[AnyRewriter], AnyRewriter]:
    def register(rewriter: AnyRewriter) -> AnyRewriter:
        _REWRITERS.update(dict.fromkeys(operators, rewriter))
        return rewriter

    return register


class _Lowering:
    """A function that Inductor calls with its buffers, as the target of a node. Generated code has its text."""

    _inductor_lowering_function = True

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __repr__(self) -> str:
        return self._function.__name__


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
    if _is_of(a, dtype):
        operator = aten.baddbmm if _value(node).dim() == 3 else aten.addmm
        return graph.call_function(operator.default, (bias, a, b), factors)
    product = _product_of_another_dtype(graph, node, {"a": a, "b": b, "out_dtype": dtype})
    product.meta["val"] = torch.empty_like(_value(node))
    if factors["alpha"] != 1:
        product = graph.call_function(aten.mul.Tensor, (product, factors["alpha"]))
    return graph.call_function(aten.add.Tensor, (product, bias), {"alpha": factors["beta"]})


@_rewrites(aten.mm.dtype)
def _product_of_another_dtype(graph: Graph, node: Node, given: Arguments) -> Node:
    """Upstream's lowering refuses devices that it does not list; that of bmm is replaced. With native_matmul, their
    product has the dtype of the operands and not the one that was asked for."""
    a, b, dtype = given.values()
    if not config.triton.native_matmul:
        return graph.call_function(lowered_product, (a, b, dtype))
    operator = aten.mm if _value(node).dim() == 2 else aten.bmm
    return graph.call_function(operator.default, (_cast(graph, a, dtype), _cast(graph, b, dtype)))


@_Lowering
def lowered_product(a: Any, b: Any, out_dtype: torch.dtype) -> Any:
    """As upstream's lowerings of mm and bmm for the devices that they list: bmm alone has a template for it."""
    from torch._inductor import utils
    from torch._inductor.kernel import bmm, mm, mm_common
    from torch._inductor.kernel_inputs import MMKernelInputs
    from torch._inductor.select_algorithm import autotune_select_algorithm
    from torch._inductor.virtualized import V

    is_batched = len(a.get_size()) == 3
    *_, layout, a, b = mm_common.mm_args(a, b, out_dtype=out_dtype)
    operands = MMKernelInputs([a, b], out_dtype=out_dtype)
    operator = bmm.aten_bmm_dtype if is_batched else mm.aten_mm_dtype
    choices: list[Any] = [operator] if not is_batched or utils.use_aten_gemm_kernels() else []
    if is_batched and utils.use_triton_template(layout, check_max_autotune=False):
        choices.append(bmm.bmm_template)
    name, options = "bmm" if is_batched else "mm", {operator.uid: {"out_dtype": out_dtype}}
    found = V.choices.get_template_configs(operands, choices, name, kwarg_overrides=options)
    result, _ = autotune_select_algorithm(name, found, operands.nodes(), layout)
    return result


@_rewrites(aten.bmm.default)
def _short_dot_products(graph: Graph, _node: Node, given: Arguments) -> Node | None:
    """Becomes part of the kernels around it, as in upstream's lowering for the devices that it lists."""
    from torch._inductor.kernel.bmm import _BMM_DOT_K_DECOMPOSE_THRESHOLD
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    (_, rows, length), (*_, columns) = _value(given["self"]).shape, _value(given["mat2"]).shape
    dtype = _value(given["self"]).dtype
    if not (statically_known_true(rows == 1) and statically_known_true(columns == 1)) or statically_known_true(
        length > _BMM_DOT_K_DECOMPOSE_THRESHOLD
    ):
        return None
    if not dtype.is_floating_point or dtype.itemsize < 2:
        return None
    return graph.call_function(_lowered_dot_products, (given["self"], given["mat2"]))


@_Lowering
def _lowered_dot_products(a: Any, b: Any) -> Any:
    from torch._inductor import lowering

    return lowering.sum_(lowering.mul(lowering.unsqueeze(a, -1), lowering.unsqueeze(b, 1)), axis=2)


@_rewrites(aten.mm.default)
def _product_of_bytes(graph: Graph, node: Node, given: Arguments) -> Node | None:
    """out_dtype(mm, torch.int32, ...) of int8 becomes a product of int32 on devices that upstream does not list."""
    casts = (given["self"], given["mat2"])
    if any(each.target is not prims.convert_element_type.default for each in casts) or not _is_of(node, torch.int32):
        return None
    narrow = [each.args[0] for each in casts]
    if not all(_is_of(each, torch.int8) for each in narrow):
        return None
    return _call(graph, aten._int_mm.default, tuple(narrow))


@_rewrites(aten.mul.Tensor)
def _product_with_weights_of_one_byte(graph: Graph, _node: Node, given: Arguments) -> Node | None:
    """F.linear(x, weight.to(x.dtype)) * scales becomes one operator. Upstream's pass does so for the devices that it
    lists."""
    product, scales, shape = given["self"], given["other"], None
    if _is_once(product, aten.reshape.default):
        product, shape = product.args
    if not _is_once(product, aten.mm.default, aten.bmm.default) or not isinstance(scales, Node):
        return None
    x, weight = product.args
    casts = []
    while weight.target in (aten.expand.default, aten.permute.default, prims.convert_element_type.default):
        casts += [weight.target] if weight.target is not aten.expand.default else []
        weight = weight.args[0]
    dtypes = [_value(each).dtype for each in (x, weight, scales)]
    is_linear = sorted(casts, key=str) == [aten.permute.default, prims.convert_element_type.default]
    if not is_linear or dtypes != [torch.bfloat16, torch.int8, torch.bfloat16]:
        return None
    if _value(weight).dim() != 2 or _value(scales).shape != _value(weight).shape[:1]:
        return None
    counters["inductor"]["woq_matcher_count"] += 1
    return graph.call_function(_lowered_product_with_weights_of_one_byte, (x, weight, scales, shape))


def _is_once(value: Any, *targets: Any) -> bool:
    """Returns whether a value is the result of one of these operators, and is used once."""
    return isinstance(value, Node) and value.target in targets and len(value.users) == 1


@_Lowering
def _lowered_product_with_weights_of_one_byte(x: Any, weight: Any, scales: Any, shape: Any) -> Any:
    from torch._inductor.lowering import lowerings

    reshape, multiply = lowerings[aten.reshape.default], lowerings[aten._weight_int8pack_mm.default]
    *rows, width = x.get_size()
    product = multiply(reshape(x, [-1, width]), weight, scales)
    return reshape(product, shape or [*rows, weight.get_size()[0]])


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


# Memory --------------------------------------------------------------------------------------------------------------


def _put_into_a_copy(graph: Graph, node: Node, given: Arguments) -> Node | None:
    """Upstream writes in place what is put into itself, and reads it while it writes: x.index_put((i,), x). See
    docs/upstream/reinplace_index_put.md."""
    others = [given["values"], *(index for index in given["indices"] if index is not None)]
    if all(get_node_storage(other) != get_node_storage(given["self"]) for other in others):
        return None
    copy = graph.call_function(aten.clone.default, (given["self"],))
    return _call(graph, node.target, (copy, *list(given.values())[1:]))


def _gradient_of_contiguous_indices(graph: Graph, _node: Node, given: Arguments) -> Node:
    """ATen's kernel reads indices as if they were contiguous; compiled code gives it some with channels last. See
    docs/upstream/adaptive_max_pool3d_backward.md."""
    return graph.call_function(_lowered_pool_gradient, tuple(given.values()))


@_Lowering
def _lowered_pool_gradient(*operands: Any) -> Any:
    from torch._inductor.ir import ExternKernel
    from torch._inductor.lowering import lowerings

    gradient = aten.adaptive_max_pool3d_backward.default
    return lowerings[gradient](*map(ExternKernel.require_contiguous, operands))


if torch_version.TORCH < (2, 15):
    _rewrites(aten.index_put.default, aten._unsafe_index_put.default)(_put_into_a_copy)
    _rewrites(aten.adaptive_max_pool3d_backward.default)(_gradient_of_contiguous_indices)


# Products and collectives -------------------------------------------------------------------------------------------


def _overlap_products_with_collectives(graph: Graph) -> None:
    """Runs upstream's pass, which does so where the wheel has NCCL, as if it had."""
    from torch._inductor.fx_passes import micro_pipeline_tp

    distributed = Overlay(torch.distributed, is_nccl_available=lambda: True)
    names = {"torch": Overlay(torch, distributed=distributed), "log": logging.getLogger(__name__)}
    (overlap,) = copies(micro_pipeline_tp, ["micro_pipeline_tp_pass"], {"is_nccl_available"}, **names).values()
    overlap(graph)
