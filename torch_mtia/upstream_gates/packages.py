"""Replacements for AOTInductor and cpp_wrapper: images of kernels, devices in C++, how generated code is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_mtia import include_paths, torch_version
from torch_mtia.backend import device_type, dispatch_key
from torch_mtia.environment import LIBRARY_FOLDER
from torch_mtia.scopes import Overlay
from torch_mtia.upstream_gates.ours import is_the_accelerator

_SHIMS = "mtia"


def named_in_cpp(original: dict[str, str]) -> dict[str, str]:
    return {**original, device_type(): f"at::k{dispatch_key()}"}


def built_for_mtia(original: Callable[..., tuple[list[str], ...]]) -> Callable[..., tuple[list[str], ...]]:
    @functools.wraps(original)
    def get_cpp_torch_device_options(*args: Any, **kwargs: Any) -> tuple[list[str], ...]:
        from torch._inductor import config

        options = original(*args, **kwargs)
        if device_type() not in (*args, kwargs.get("device_type")):
            return options
        definitions, include_dirs, cflags, ldflags, libraries_dirs, libraries, passthrough = options
        definitions = [*definitions, " USE_CUDA"]  # of which csrc/aoti/cuda has what generated code uses
        (include,) = include_paths()
        include_dirs = [*include_dirs, include, f"{include}/torch_mtia/aoti/cuda"]
        if config.aot_inductor.link_libtorch:
            libraries_dirs = [*libraries_dirs, str(LIBRARY_FOLDER)]
            libraries = [*libraries, "torch_mtia"]
        return definitions, include_dirs, cflags, ldflags, libraries_dirs, libraries, passthrough

    return get_cpp_torch_device_options


def kernels_with_the_code(original: Callable[..., dict[str, object]]) -> Callable[..., dict[str, object]]:
    @functools.wraps(original)
    def get_cpp_wrapper_config(*args: Any, **kwargs: Any) -> dict[str, object]:
        from torch._inductor.virtualized import V

        settings = original(*args, **kwargs)
        # From 2.14 on the other value has C++ code launch kernels, with headers of CUDA.
        launches_in_python = V.aot_compilation and torch_version.TORCH < (2, 14)
        if not launches_in_python and is_the_accelerator():
            settings["triton.autotune_at_compile_time"] = True
        return settings

    return get_cpp_wrapper_config


def header_of_mtia(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def _get_cpp_wrapper_header(device: str, aot_mode: bool = False) -> str:
        return original(device.replace(device_type(), _SHIMS), aot_mode)

    return _get_cpp_wrapper_header


def tuned_before_it_is_written(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has upstream treat graphs on the device as those on CUDA."""

    @functools.wraps(original)
    def codegen_with_cpp_wrapper(self: Any) -> Any:
        is_ours = device_type() in self.device_types
        return original(Overlay(self, device_types={"cuda"}) if is_ours else self)

    return codegen_with_cpp_wrapper
