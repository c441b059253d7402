"""Rows of libraries that use PyTorch, and list the devices that they choose from."""

from __future__ import annotations

from torch_mtia.clients import replacements
from torch_mtia.upstream_gates.gate import Gate, Reason

GATES: tuple[Gate, ...] = (
    Gate(
        name="safe_open",
        modules=(
            "safetensors._safetensors_rust",
            "safetensors",
            "safetensors.torch",
            "accelerate.utils.modeling",
            "accelerate.utils.offload",
            "transformers.modeling_utils",
        ),
        reason=Reason.CLIENT,
        why="safetensors lists the devices that it loads a file to.",
        replace=replacements.opened_on_mtia,
    ),
    Gate(
        name="PartialState.default_device",
        modules=("accelerate.state",),
        reason=Reason.CLIENT,
        why="accelerate's device, and that of transformers' Trainer, is the first that there is of a list, or the CPU.",
        replace=replacements.default_of_accelerate,
    ),
    Gate(
        name="PartialState._prepare_backend",
        modules=("accelerate.state",),
        reason=Reason.CLIENT,
        why="Where torchrun has started several processes, each trains alone, and not on its rank's device, if another "
        "list does not have the device.",
        replace=replacements.a_process_for_each_device,
    ),
    Gate(
        name="PartialState.wait_for_everyone",
        modules=("accelerate.state",),
        reason=Reason.CLIENT,
        why="Processes on the CPU wait for each other by a device's number, which PyTorch takes for the accelerator's.",
        replace=replacements.waiting_on_the_cpu,
    ),
    Gate(
        name="Accelerator.__init__",
        modules=("accelerate.accelerator",),
        reason=Reason.CLIENT,
        why="Mixed precision with float16 is refused for devices that are not listed. Checkpoints have the states of "
        "the random numbers of listed devices.",
        replace=replacements.accelerator_on_mtia,
    ),
    Gate(
        name="get_grad_scaler",
        modules=("accelerate.utils.modeling", "accelerate.utils", "accelerate.accelerator"),
        reason=Reason.CLIENT,
        why="Gradients on devices that are not listed get a scaler for CUDA, which without CUDA scales nothing.",
        replace=replacements.scaler_for_mtia,
    ),
    Gate(
        name="get_max_memory",
        modules=("accelerate.utils.modeling", "accelerate.utils"),
        reason=Reason.CLIENT,
        why='With device_map="auto", models are divided among devices that are listed.',
        replace=replacements.memory_with_mtia,
    ),
    Gate(
        name="_validate_launch_command",
        modules=("accelerate.commands.launch",),
        reason=Reason.CLIENT,
        why="`accelerate launch` starts a process for each device of a list, else one.",
        replace=replacements.launched_on_every_mtia,
    ),
    Gate(
        name="write_basic_config",
        modules=("accelerate.commands.config.default", "accelerate.utils.other", "accelerate.utils"),
        reason=Reason.CLIENT,
        why="The file that it writes says use_cpu where no device of a list is there.",
        replace=replacements.configured_for_mtia,
    ),
    Gate(
        name="DISTRIBUTED_BACKEND_MAP",
        modules=("transformers.distributed.utils",),
        reason=Reason.CLIENT,
        why="With tp_plan, process groups are made for devices that are listed.",
        replace=replacements.with_the_backend_of_mtia,
        by_name=True,
    ),
    Gate(
        name="TrainingArguments._setup_devices",
        modules=("transformers.training_args",),
        reason=Reason.CLIENT,
        why="Where transformers' Trainer is one process, its device is the first that there is of a list, or the CPU.",
        replace=replacements.trainer_where_accelerate_is,
    ),
    Gate(
        name="is_torch_bf16_gpu_available",
        modules=("transformers.utils.import_utils", "transformers.utils", "transformers.training_args"),
        reason=Reason.CLIENT,
        why="The Trainer's bf16=True is refused on devices that are not listed.",
        replace=replacements.true_of_mtia,
    ),
    Gate(
        name="Pipeline.__init__",
        modules=("transformers.pipelines.base",),
        reason=Reason.CLIENT,
        why="A pipeline moves the model to the first device that there is of a list, or to the CPU.",
        replace=replacements.pipeline_on_mtia,
    ),
    Gate(
        name="Trainer._save_rng_state",
        modules=("transformers.trainer",),
        reason=Reason.CLIENT,
        why="The Trainer's checkpoints have the states of the random numbers of listed devices.",
        replace=replacements.trainer_saves_random_states,
    ),
    Gate(
        name="Trainer._load_rng_state",
        modules=("transformers.trainer",),
        reason=Reason.CLIENT,
        why="The Trainer loads from its checkpoints the states of the random numbers of listed devices.",
        replace=replacements.trainer_loads_random_states,
    ),
    Gate(
        name="infer_device",
        modules=("peft.utils.other", "peft.utils", "peft.peft_model"),
        reason=Reason.CLIENT,
        why="peft loads adapters to the first device that there is of a list, or to the CPU.",
        replace=replacements.named_instead_of_cpu,
    ),
    Gate(
        name="device",
        modules=("torch_geometric.device", "torch_geometric"),
        reason=Reason.CLIENT,
        why='torch_geometric.device("auto") is the first that there is of a list, or the CPU.',
        replace=replacements.found_instead_of_cpu,
    ),
    Gate(
        name="DeviceRepos.create_repo",
        modules=("kernels.layer.repos",),
        reason=Reason.CLIENT,
        why="Layers are mapped to kernels of the Hub for devices that kernels lists.",
        replace=replacements.repositories_of_mtia,
    ),
    Gate(
        name="_validate_device_type",
        modules=("kernels.layer.kernelize",),
        reason=Reason.CLIENT,
        why="Layers are replaced by kernels of the Hub on devices that kernels lists.",
        replace=replacements.valid_device,
    ),
    Gate(
        name="get_device_name",
        modules=("sentence_transformers.util.environment", "sentence_transformers.util"),
        reason=Reason.CLIENT,
        why="sentence-transformers encodes on the first device that there is of a list, or on the CPU.",
        replace=replacements.named_instead_of_cpu,
    ),
    Gate(
        name="infer_device",
        modules=("liger_kernel.utils",),
        reason=Reason.CLIENT,
        why="Liger Kernel's layers and its tests compute on the first device that there is of a list, or on the CPU.",
        replace=replacements.named_instead_of_cpu,
    ),
)
