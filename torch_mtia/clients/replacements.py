"""Replacements in libraries that choose a device from a list of their own, and would leave a program on the CPU.

Each acts only where the library's own choice is the CPU, nobody has asked for that, and this process has our devices.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from torch_mtia.backend import device_module, device_type
from torch_mtia.distributed import BACKEND
from torch_mtia.scopes import with_globals
from torch_mtia.upstream_gates.device_lists import with_the_device

Function = Callable[..., Any]


def is_the_accelerator() -> bool:
    """Whether this process has our devices, and they are what PyTorch calls its accelerator."""
    current = torch.accelerator.current_accelerator(check_available=True)
    return current is not None and current.type == device_type()


def ours_instead_of_cpu(device: Any) -> Any:
    """Takes and returns a device, or a device's name."""
    if str(device) != "cpu" or not is_the_accelerator():
        return device
    return type(device)(device_type())


def named_instead_of_cpu(original: Function) -> Function:
    """Replaces functions that answer which device to use."""

    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return ours_instead_of_cpu(original(*args, **kwargs))

    return choose


def found_instead_of_cpu(original: Function) -> Function:
    """Replaces functions that take a device's name, of which one is "auto"."""

    @functools.wraps(original)
    def device(device: Any) -> Any:
        found = original(device)
        return ours_instead_of_cpu(found) if device == "auto" else found

    return device


def true_of_mtia(original: Function) -> Function:
    @functools.wraps(original)
    def is_available(*args: Any, **kwargs: Any) -> bool:
        return bool(original(*args, **kwargs)) or is_the_accelerator()

    return is_available


def opened_on_mtia(original: Function) -> Function:
    """safetensors lists the names of devices in Rust, but a number is one of whatever accelerator there is."""

    @functools.wraps(original, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        kind, _, index = str(device).partition(":")
        if kind == device_type() and is_the_accelerator():
            device = int(index) if index else device_module().current_device()
        return original(filename, framework, device, **kwargs)

    return safe_open


def valid_device(original: Callable[[str], None]) -> Callable[[str], None]:
    def _validate_device_type(name: str) -> None:
        if name != device_type():
            original(name)

    return _validate_device_type


def repositories_of_mtia(original: Function) -> Any:
    """Serves the Hugging Face package kernels, which looks for the layers of one device in an object for it."""

    @functools.wraps(original)
    def create_repo(device: Any) -> Any:
        if device.type != device_type():
            return original(device)
        base: Any = importlib.import_module("kernels.layer.repos").DeviceRepos

        class _Repos(base):  # type: ignore[misc]
            repos: Any = None

            def insert(self, device: Any, repos: Any) -> None:  # noqa: ARG002
                self.repos = repos

        return _Repos()

    return staticmethod(create_repo)


# accelerate


def default_of_accelerate(original: property) -> property:
    choose: Any = original.fget
    return property(named_instead_of_cpu(choose))


def a_process_for_each_device(original: Function) -> Function:
    """MULTI_GPU is accelerate's name for that: with it, models become DistributedDataParallel, FSDP is possible. What
    chooses the rank's device afterwards leaves one that is chosen already."""

    @functools.wraps(original)
    def _prepare_backend(
        self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> tuple[str | None, Any]:
        from accelerate.utils import DistributedType

        chosen, kind = original(self, cpu, sagemaker_dp, backend)
        rank = int(os.environ.get("LOCAL_RANK", -1))
        if rank != -1 and not cpu and kind == DistributedType.NO and is_the_accelerator():
            if self.device is None:
                self.device = torch.device(device_type(), rank % device_module().device_count())
                device_module().set_device(self.device)
            return chosen or BACKEND, DistributedType.MULTI_GPU
        return chosen, kind

    return _prepare_backend


def waiting_on_the_cpu(original: Function) -> Function:
    @functools.wraps(original)
    def wait_for_everyone(self: Any) -> None:
        if self.device is not None and self.device.type == "cpu" and self.use_distributed and is_the_accelerator():
            torch.distributed.barrier()
        else:
            original(self)

    return wait_for_everyone


def scaler_for_mtia(original: Function) -> Function:
    """Upstream's is one for CUDA, which without CUDA does nothing."""

    @functools.wraps(original)
    def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> Any:
        if not torch.cuda.is_available() and is_the_accelerator():
            from accelerate.utils import DistributedType
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            make = ShardedGradScaler if distributed_type == DistributedType.FSDP else torch.amp.GradScaler
            return make(device_type(), **kwargs)
        return original(distributed_type, **kwargs)

    return get_grad_scaler


def memory_with_mtia(original: Function) -> Function:
    @functools.wraps(original)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> dict[Any, Any]:
        found: dict[Any, Any] = original(max_memory)
        if max_memory is not None or any(isinstance(key, int) for key in found) or not is_the_accelerator():
            return found
        devices = range(device_module().device_count())
        return {device: torch.accelerator.get_memory_info(device)[0] for device in devices} | found

    return get_max_memory


# What excludes that a process for each device is started unasked.
_CHOICES = ("multi_gpu", "tpu_use_cluster", "use_deepspeed", "use_fsdp", "use_megatron_lm")


def launched_on_every_mtia(original: Function) -> Function:
    @functools.wraps(original)
    def validate(args: Any) -> Any:
        from accelerate.commands import launch
        from accelerate.utils import parse_flag_from_env

        configured = args.config_file is not None or Path(launch.default_config_file).is_file()
        if configured or args.cpu or args.tpu or args.gpu_ids not in (None, "all") or not is_the_accelerator():
            return original(args)
        if parse_flag_from_env("ACCELERATE_USE_CPU"):  # which the launched process would not get
            args.cpu = True
            return original(args)
        devices = device_module().device_count()
        if args.num_processes is None and devices > 1:
            args.num_processes = devices
        if devices > 1 and args.num_processes > 1 and not any(getattr(args, name) for name in _CHOICES):
            args.multi_gpu = True
        validated = original(args)
        args.num_processes = args.num_processes or devices  # 0: the devices of torch.cuda
        return validated

    return validate


def configured_for_mtia(original: Function) -> Function:
    @functools.wraps(original)
    def write_basic_config(*args: Any, **kwargs: Any) -> Any:
        path = original(*args, **kwargs)
        if path and is_the_accelerator():  # False: there was a file, which stays
            from accelerate.commands.config.config_args import ClusterConfig

            config = ClusterConfig.from_json_file(path)
            if config.use_cpu:
                config.use_cpu = False
                config.num_processes = device_module().device_count()
                config.distributed_type = "MULTI_GPU" if config.num_processes > 1 else "NO"
                config.to_json_file(path)
        return path

    return write_basic_config


# Checkpoints have the states of the generators of the devices that the libraries list: ours are in a file of their own.


def _states_file(folder: Any, process: int) -> Path:
    return Path(folder) / f"rng_state_{device_type()}_{process}.pth"


def _save_states(folder: Any, process: int) -> None:
    if is_the_accelerator():
        torch.save(device_module().get_rng_state_all(), _states_file(folder, process))


def _load_states(folder: Any, process: int) -> None:
    file = _states_file(folder, process)
    if is_the_accelerator() and file.is_file():
        device_module().set_rng_state_all(torch.load(file, weights_only=True))


def accelerator_on_mtia(original: FunctionType) -> Function:
    """Runs upstream's own code with the device in its list of those with float16; accelerate's hooks of checkpoints do
    the rest."""
    listed = with_globals(original)
    listed.__code__ = with_the_device(original.__code__)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_the_accelerator():
            original(self, *args, **kwargs)
            return
        listed(self, *args, **kwargs)
        self.register_save_state_pre_hook(lambda _models, _weights, folder: _save_states(folder, self.process_index))
        self.register_load_state_pre_hook(lambda _models, folder: _load_states(folder, self.process_index))

    return __init__


# transformers


def with_the_backend_of_mtia(original: dict[str, str]) -> dict[str, str]:
    return {**original, device_type(): BACKEND}


def trainer_where_accelerate_is(original: Any) -> Any:
    """TrainingArguments ask accelerate for a device, and outside of torchrun go through a list of their own then."""

    def _setup_devices(self: Any) -> torch.device:
        device: torch.device = original.func(self)
        of_accelerate = getattr(self.distributed_state, "device", device)
        return of_accelerate if device.type == "cpu" and of_accelerate.type == device_type() else device

    replacement = functools.cached_property(_setup_devices)
    replacement.__set_name__(type, original.attrname)
    return replacement


def pipeline_on_mtia(original: Function) -> Function:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(*args: Any, **kwargs: Any) -> None:
        call = signature.bind(*args, **kwargs)
        given = call.arguments
        device = given.get("device")
        is_divided = getattr(given.get("model"), "hf_device_map", None) is not None
        is_numbered = device is None or (isinstance(device, int) and device >= 0)
        if is_numbered and not is_divided and not torch.cuda.is_available() and is_the_accelerator():
            given["device"] = torch.device(device_type(), device or 0)
        original(*call.args, **call.kwargs)

    return __init__


def trainer_saves_random_states(original: Function) -> Function:
    @functools.wraps(original)
    def _save_rng_state(self: Any, output_dir: str) -> None:
        original(self, output_dir)
        _save_states(output_dir, self.args.process_index)

    return _save_rng_state


def trainer_loads_random_states(original: Function) -> Function:
    @functools.wraps(original)
    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        original(self, checkpoint)
        if checkpoint is not None:
            _load_states(checkpoint, self.args.process_index)

    return _load_rng_state
