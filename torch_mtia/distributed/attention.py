"""How DTensor divides the attention of the device: by examples or by heads, as it divides that of other devices."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

EXAMPLES, HEADS, SEQUENCE = 0, 1, 2  # dimensions of a query
_FORWARD: Any = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_BACKWARD: Any = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default


def register(_: ModuleType) -> None:
    """To be called when DTensor has registered the operators of PyTorch."""
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import register_op_strategy

    register_op_strategy(_FORWARD, schema_info=RuntimeSchemaInfo(4))(_forward)
    register_op_strategy(_BACKWARD, schema_info=RuntimeSchemaInfo(5))(_backward)


def _forward(schema: Any) -> Any:
    query, key, _, *rest = schema.args_schema
    mask = rest[0] if rest else None
    # output and logsumexp; sequences, their lengths, a generator's state and a mask for debugging are of no use
    return _strategies(schema, (True, True, *[False] * 7), query, key, mask, masked=3)


def _backward(schema: Any) -> Any:
    _, query, key, _, mask, *_ = schema.args_schema
    return _strategies(schema, (True, True, True, False), query, key, mask, masked=4)


def _strategies(schema: Any, outputs: tuple[bool, ...], query: Any, key: Any, mask: Any, masked: int) -> Any:
    """`outputs` says which of them are divided as the query is; `masked` is the position of the mask."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._op_schema import OpStrategy
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    mesh = schema.get_mesh_from_args(validate=False)
    # Where keys have fewer heads than queries, the parts have to be of whole groups.
    by_heads = query.shape[HEADS] == key.shape[HEADS] or key.shape[HEADS] % mesh.size() == 0
    choices: list[Any] = []
    for dim in (None, EXAMPLES, *([HEADS] if by_heads else [])):
        placement = Replicate() if dim is None else Shard(dim)
        is_for_all = dim is not None and mask is not None and (len(mask.shape) < 4 or mask.shape[dim] == 1)
        of_mask = Replicate() if is_for_all else placement
        inputs = []
        for position, argument in enumerate(schema.args_schema):
            if isinstance(argument, OpStrategy):
                is_state = not argument.shape  # of a generator
                inputs.append(of_mask if position == masked else Replicate() if is_state else placement)
        choices.append([*(placement if output else None for output in outputs), *inputs])
    return expand_to_full_mesh_op_strategy(mesh, schema, choices, input_index=len(outputs))


# Context parallelism: a sequence is divided, and its keys and values go around ---------------------------------------


def with_rings(handlers: dict[Any, Any]) -> dict[Any, Any]:
    """Returns the operators that PyTorch's context parallelism handles, and those of the device."""
    return {**handlers, _FORWARD: _in_ring, _BACKWARD: _in_ring}


def _in_ring(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental._context_parallel import _attention

    names = [argument.name for argument in operator._schema.arguments]
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("attn_bias") is not None:
        raise NotImplementedError("context parallelism of attention with a mask")
    mesh, placements = given["query"].device_mesh, given["query"].placements
    local: dict[str, Any] = {
        name: value.to_local() if isinstance(value, DTensor) else value for name, value in given.items()
    }
    group = mesh.get_group()
    if operator is _FORWARD:
        is_causal = local.pop("is_causal", False)
        results = _attention._templated_ring_attention(group, SEQUENCE, operator, is_causal=is_causal, **local)
        num_divided = 2
    else:
        results = _attention._templated_ring_attention_backward(
            group, SEQUENCE, operator, grad_out_name="grad_out", **local
        )
        num_divided = 3
    divided = (DTensor.from_local(each, mesh, placements, run_check=False) for each in results[:num_divided])
    return (*divided, *results[num_divided:])
