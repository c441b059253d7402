"""How DTensor shards the norm that torch.norm and Tensor.norm call on devices that they do not list.

On listed devices they call torch.linalg.vector_norm, whose strategy is right for both: without one, DTensor takes the
norm of a shard for that of the whole.
"""

from __future__ import annotations

from types import ModuleType

import torch

from torch_mtia import torch_version


def register(_: ModuleType) -> None:
    """To be called when DTensor has registered the operators of PyTorch."""
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor._ops import _math_ops

    norm = torch.ops.aten.norm
    for operator, schema in (
        (norm.ScalarOpt_dim, RuntimeSchemaInfo(1)),
        (norm.ScalarOpt_dim_dtype, RuntimeSchemaInfo(1, ["dtype"])),
    ):
        if torch_version.TORCH < (2, 14):
            from torch.distributed.tensor._ops.utils import register_op_strategy

            register_op_strategy(operator, schema_info=schema)(_math_ops.vector_norm_strategy)
        else:
            from torch.distributed.tensor._ops.single_dim_strategy import register_single_dim_strategy

            shards = register_single_dim_strategy(
                operator, schema_info=schema, allow_uneven_sharding=True, allow_unbacked_sharding=False
            )
            shards(_math_ops.vector_norm_single_dim_strategy)  # type: ignore[attr-defined]
