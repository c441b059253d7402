"""Rows of Lightning, in all packages that it is published in."""

from __future__ import annotations

from torch_mtia.upstream_gates.deferred import clients_probes, lightning
from torch_mtia.upstream_gates.gate import Gate

_TRAINER = (
    "lightning.pytorch.trainer.connectors.accelerator_connector",
    "pytorch_lightning.trainer.connectors.accelerator_connector",
)
_FABRIC = ("lightning.fabric.connector", "lightning_fabric.connector")

LIGHTNING_GATES: tuple[Gate, ...] = (
    *(
        Gate(
            name=f"{connector}._choose_auto_accelerator",
            modules=modules,
            why='With accelerator="auto", the first that there is of a list is taken, or the CPU.',
            replace=lightning.accelerator_instead_of_cpu,
            is_needed=clients_probes.answers_cpu,
            of_any_version=True,
        )
        for connector, modules in (("_AcceleratorConnector", _TRAINER), ("_Connector", _FABRIC))
    ),
    *(
        Gate(
            name=f"{connector}._choose_strategy",
            modules=modules,
            why="A single device of an accelerator that is not listed is taken for the CPU.",
            replace=lightning.on_its_device,
            is_needed=clients_probes.puts_it_on_the_cpu,
            of_any_version=True,
        )
        for connector, modules in (("_AcceleratorConnector", _TRAINER), ("_Connector", _FABRIC))
    ),
    *(
        Gate(
            name=f"{connector}._check_and_init_precision",
            modules=modules,
            why="Mixed precision is that of CUDA for every accelerator that is not listed.",
            replace=lightning.cast_on_mtia,
            is_needed=clients_probes.casts_elsewhere,
            of_any_version=True,
        )
        for connector, modules in (("_AcceleratorConnector", _TRAINER), ("_Connector", _FABRIC))
    ),
    Gate(
        name="DDPStrategy.determine_ddp_device_ids",
        modules=("lightning.pytorch.strategies.ddp", "pytorch_lightning.strategies.ddp"),
        why="DistributedDataParallel is made in a stream of torch.cuda unless the device is the CPU.",
        replace=lightning.not_in_a_stream_of_cuda,
        is_needed=clients_probes.numbers_devices,
        of_any_version=True,
    ),
    Gate(
        name="DDPStrategy._determine_ddp_device_ids",
        modules=("lightning.fabric.strategies.ddp", "lightning_fabric.strategies.ddp"),
        why="As above, in Lightning's Fabric.",
        replace=lightning.not_in_a_stream_of_cuda,
        is_needed=clients_probes.numbers_devices,
        of_any_version=True,
    ),
)
