"""Rows of Lightning, in all packages that it is published in."""

from __future__ import annotations

from torch_mtia.clients import lightning
from torch_mtia.upstream_gates.gate import Gate, Reason

_CONNECTORS = {
    "_AcceleratorConnector": (
        "lightning.pytorch.trainer.connectors.accelerator_connector",
        "pytorch_lightning.trainer.connectors.accelerator_connector",
    ),
    "_Connector": ("lightning.fabric.connector", "lightning_fabric.connector"),
}

GATES: tuple[Gate, ...] = (
    *(
        Gate(
            name=f"{connector}.{method}",
            modules=modules,
            reason=Reason.CLIENT,
            why=why,
            replace=replace,
        )
        for connector, modules in _CONNECTORS.items()
        for method, why, replace in (
            (
                "_choose_auto_accelerator",
                'With accelerator="auto", the first that there is of a list is taken, or the CPU.',
                lightning.accelerator_instead_of_cpu,
            ),
            (
                "_choose_strategy",
                "A single device of an accelerator that is not listed is taken for the CPU.",
                lightning.on_its_device,
            ),
            (
                "_check_and_init_precision",
                "Mixed precision is that of CUDA for every accelerator that is not listed.",
                lightning.cast_on_mtia,
            ),
        )
    ),
    Gate(
        name="DDPStrategy.determine_ddp_device_ids",
        modules=("lightning.pytorch.strategies.ddp", "pytorch_lightning.strategies.ddp"),
        reason=Reason.CLIENT,
        why="DistributedDataParallel is made in a stream of torch.cuda unless the device is the CPU.",
        replace=lightning.not_in_a_stream_of_cuda,
    ),
    Gate(
        name="DDPStrategy._determine_ddp_device_ids",
        modules=("lightning.fabric.strategies.ddp", "lightning_fabric.strategies.ddp"),
        reason=Reason.CLIENT,
        why="Fabric makes DistributedDataParallel in a stream of torch.cuda unless the device is the CPU.",
        replace=lightning.not_in_a_stream_of_cuda,
    ),
)
