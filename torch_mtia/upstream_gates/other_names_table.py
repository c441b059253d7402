"""The rows for devices of another name than mtia: see torch_mtia/privateuse1.py."""

from __future__ import annotations

import torch

from torch_mtia import torch_version
from torch_mtia.backend import device_type
from torch_mtia.distributed import BACKEND
from torch_mtia.inductor import decompositions
from torch_mtia.upstream_gates import device_lists
from torch_mtia.upstream_gates.deferred import eager, nested, packages, parallel, process_groups
from torch_mtia.upstream_gates.gate import Gate, Reason

GATES: tuple[Gate, ...] = (
    Gate(
        name="Backend.default_device_backend_map",
        modules=("torch.distributed.distributed_c10d",),
        reason=Reason.DEVICES,
        why="Groups for which no backend is named have one for each device that it lists.",
        replace=process_groups.backends_of_devices,
    ),
    Gate(
        name="Backend.backend_capability[tmccl]",
        modules=("torch.distributed.distributed_c10d",),
        reason=Reason.DEVICES,
        why="It says which devices a backend serves.",
        replace=lambda _: [device_type(), "cpu"],
        entry=lambda: BACKEND,
    ),
    device_lists.device_list(
        "GPU_TYPES",
        "torch._inductor.utils",
        "Inductor generates Triton kernels, and does what else accelerators need, for devices that it lists.",
        is_function=False,
        also_in=(
            "torch._inductor.fx_passes.freezing_patterns",
            "torch.testing._internal.common_device_type",
            "torch.testing._internal.inductor_utils",
        ),
    ),
    device_lists.device_list(
        "GPU_BENCHMARK_DEVICE_TYPES",
        "torch._inductor.runtime.benchmarking",
        "Kernels are measured on devices that it lists.",
        is_function=False,
    ),
    device_lists.device_list(
        "has_triton.__wrapped__",
        "torch.utils._triton",
        "It says of devices it lists that they have Triton.",
        in_place_of="mtia",
        versions=torch_version.before(2, 14),
    ),
    Gate(
        name="decompositions[native_layer_norm]",
        modules=("torch._inductor.decomposition",),
        reason=Reason.DEVICES,
        why="Upstream leaves layer norm whole for the kernel of mtia, which it knows by the dispatch key.",
        replace=decompositions.whole,
        entry=lambda: torch.ops.aten.native_layer_norm.default,
    ),
    device_lists.device_list("is_compile_supported", "torch._dynamo.utils", "It says what torch.compile supports."),
    device_lists.device_list(
        "native_layer_norm.__wrapped__",
        "torch._refs",
        "The dtype that the statistics of layer norm have depends on the device.",
        in_place_of="mtia",
    ),
    Gate(
        name="TransformerEncoder.forward",
        modules=("torch.nn.modules.transformer",),
        reason=Reason.DEVICES,
        why="In evaluation with a padding mask it makes strided nested tensors, and there are none on such a device.",
        replace=nested.padded_as_it_is,
    ),
    Gate(
        name="Module._apply",
        modules=("torch.nn.modules.module",),
        reason=Reason.DEVICE,
        why="A module that moves to such a device gets new parameters, one for each place: what two parts shared, as a "
        "language model its embedding, they no longer would.",
        replace=eager.keeping_what_is_shared,
    ),
    Gate(
        name="_move_states_to_device",
        modules=(
            "torch.distributed.fsdp._fully_shard._fsdp_init",
            "torch.distributed.fsdp._init_utils",
        ),
        reason=Reason.DEVICE,
        why="FSDP sets a parameter's data to what is on the device, which PyTorch refuses for a device of such a name.",
        replace=parallel.swapped,
    ),
    Gate(
        name="_get_cpp_wrapper_header",
        modules=("torch._inductor.codecache",),
        reason=Reason.DEVICES,
        why="The header of the device is looked for by its name in Python.",
        replace=packages.header_of_mtia,
    ),
)
