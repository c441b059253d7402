"""The checks of torch_mtia.clients: what other libraries do today."""

from __future__ import annotations

import functools
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.gate_checks.core import DEVICE, raises, with_values, with_variable
from torch_mtia.backend import device_module, device_type

Function = Callable[..., Any]


def opens_nothing(safe_open: Function) -> bool:
    from safetensors.torch import save

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tensors"
        file.write_bytes(save({"a": torch.ones(1)}))
        return raises(safe_open, file, "pt", device=DEVICE)


def answers_cpu(choose: Function) -> bool:
    return str(choose()) == "cpu"


def defaults_to_the_cpu(default_device: Any) -> bool:
    return answers_cpu(functools.partial(default_device.fget, SimpleNamespace()))


def trains_alone(prepare_backend: Function) -> bool:
    state = SimpleNamespace(device=None)
    with with_variable("LOCAL_RANK", "0"):
        backend, _ = prepare_backend(state)
    return backend is None or state.device is None


def waits_by_a_number(wait_for_everyone: Function) -> bool:
    from accelerate.utils import DistributedType

    numbers = []
    state = SimpleNamespace(
        device=torch.device("cpu"),
        distributed_type=DistributedType.MULTI_CPU,
        local_process_index=0,
        use_distributed=True,
    )
    with with_values(torch.distributed, barrier=lambda device_ids=None: numbers.append(device_ids)):
        wait_for_everyone(state)
    return numbers != [None]


def scales_nothing(get_grad_scaler: Function) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return not get_grad_scaler().is_enabled()


def finds_no_memory(get_max_memory: Function) -> bool:
    return 0 not in get_max_memory()


def launches_one_process(validate: Function) -> bool:
    from accelerate.commands import launch

    args = launch.launch_command_parser().parse_args(["script.py"])
    with with_values(device_module(), device_count=lambda: 2), with_values(launch, default_config_file=""):
        validate(args)
    return not args.multi_gpu


def writes_the_cpu(write_basic_config: Function) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = write_basic_config(save_location=str(Path(folder) / "config.json"))
        return bool(json.loads(Path(path).read_text())["use_cpu"])


def _leaves_random_states(save: Callable[[str], Any], load: Callable[[str], Any]) -> bool:
    """Whether the device's random numbers go on after `load` as if nothing had been saved."""
    before = torch.mtia.get_rng_state()
    try:
        with tempfile.TemporaryDirectory() as folder:
            save(folder)
            torch.rand(1, device=DEVICE)
            load(folder)
        return not torch.equal(torch.mtia.get_rng_state(), before)
    finally:
        torch.mtia.set_rng_state(before)


def makes_no_accelerator(initialize: Function) -> bool:
    """With float16; or its checkpoints leave the device's random numbers as they are."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    accelerator = Accelerator.__new__(Accelerator)
    AcceleratorState._reset_state()
    try:
        if raises(initialize, accelerator, mixed_precision="fp16"):
            return True
        return _leaves_random_states(accelerator.save_state, accelerator.load_state)
    finally:
        AcceleratorState._reset_state()


def has_no_backend(backends: dict[str, str]) -> bool:
    return device_type() not in backends


def trains_on_the_cpu(setup_devices: Any) -> bool:
    from transformers import TrainingArguments

    with with_values(TrainingArguments, _setup_devices=setup_devices):
        return bool(TrainingArguments(report_to=[]).device.type != DEVICE)


def moves_the_model_away(make: Function) -> bool:
    from transformers.pipelines.base import Pipeline

    methods = dict.fromkeys(Pipeline.__abstractmethods__) | {"_sanitize_parameters": lambda *_: ({}, {}, {})}
    pipeline: Any = type("Pipeline", (Pipeline,), methods)
    model: Any = torch.nn.Linear(1, 1)
    model.can_generate = lambda: False
    model.config = SimpleNamespace(task_specific_params=None)
    model.device = torch.device("cpu")
    made = pipeline.__new__(pipeline)
    make(made, model, task="any")
    return bool(made.device.type != DEVICE)


_TRAINER: Any = SimpleNamespace(args=SimpleNamespace(world_size=1, process_index=0, parallel_mode=None))


def trainer_saves_no_random_states(save: Function) -> bool:
    from transformers import Trainer

    return _leaves_random_states(
        functools.partial(save, _TRAINER), functools.partial(Trainer._load_rng_state, _TRAINER)
    )


def trainer_loads_no_random_states(load: Function) -> bool:
    from transformers import Trainer

    return _leaves_random_states(
        functools.partial(Trainer._save_rng_state, _TRAINER), functools.partial(load, _TRAINER)
    )


def _connector(precision: str) -> Any:
    """What Lightning's methods look at, in both of its packages."""
    return SimpleNamespace(
        accelerator=SimpleNamespace(is_of_torch_mtia=True),
        strategy=None,
        _accelerator_flag=DEVICE,
        _num_nodes_flag=1,
        _parallel_devices=[torch.device(DEVICE, 0)],
        _precision_flag=precision,
        _precision_input=precision,
        _precision_instance=None,
        _precision_plugin_flag=None,
        _validate_precision_choice=lambda: None,
    )


def puts_it_on_the_cpu(choose_strategy: Function) -> bool:
    return bool(choose_strategy(_connector("32-true")).root_device.type != DEVICE)


def casts_elsewhere(make_precision: Function) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision = make_precision(_connector("16-mixed"))
    return precision.device != DEVICE or not precision.scaler.is_enabled()


def numbers_devices(determine: Function) -> bool:
    return determine(SimpleNamespace(root_device=torch.device(DEVICE, 0))) is not None


def maps_no_layers(create: Function) -> bool:
    return raises(create, SimpleNamespace(type=DEVICE))


def validates_no_device(validate: Function) -> bool:
    return raises(validate, DEVICE)
