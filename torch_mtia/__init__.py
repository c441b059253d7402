"""PyTorch's device type `mtia`, for a stock PyTorch on any machine.

`import torch` is enough: PyTorch loads this package through its entry point of the group `torch.backends`. Importing it
by name does the same, and is the way to load it with TORCH_DEVICE_BACKEND_AUTOLOAD=0. Loading starts no thread and does
not touch the device. If it cannot load, `import torch` warns, and the first use of the device raises. In the processes
of the conformance suite, whose device may be another, it waits for a first use.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torch_mtia import environment
from torch_mtia._versions import __version__, built_for_another_torch, unsupported_torch

if TYPE_CHECKING:
    from torch_mtia import fallback, graphs, memory, privateuse1
    from torch_mtia.graphs import make_graphed_callables
    from torch_mtia.streams import launch_host_function

__all__ = [
    "__version__",
    "environment",
    "fallback",
    "graphs",
    "include_paths",
    "launch_host_function",
    "make_graphed_callables",
    "memory",
    "privateuse1",
]


_was_used = False  # loaded, or about to be
_load_error: Exception | None = None


def include_paths() -> list[str]:
    """Returns the include folder of `#include <torch_mtia/device/Extension.h>`, as a list of one path.

    `torch_mtia.cpp_extension` has the rest of what a build needs.
    """
    return [str(Path(__file__).resolve().parent / "include")]


def _autoload() -> None:
    """Loads the backend, unless it waits for its first use.

    PyTorch calls it at the end of `import torch`, which must not fail for programs that do not use the device. So what
    went wrong is raised at the first use.
    """
    if _waits() or _load_error is not None:  # which has been announced
        return
    try:
        _load()
    except Exception as error:
        from torch_mtia import unavailable

        unavailable.announce(error)


def _load() -> None:
    """Loads the backend, once; raises again what went wrong, if it did.

    Note [Import order]
    With `import torch_mtia` first, the `import torch` below comes back here while this module is half imported: PyTorch
    finds it in sys.modules and calls `_autoload`. So everything it needs is defined above that line, and whichever
    call comes first does the work.
    """
    global _was_used, _load_error
    if _load_error is not None:
        raise _load_error
    if _was_used:
        return
    _was_used = True
    try:
        _load_backend()
    except Exception as error:
        _load_error = error
        raise


def _load_backend() -> None:
    import torch

    if message := unsupported_torch(torch.__version__):
        raise ImportError(f"{message}.")
    settings = environment.settings()
    if settings.privateuse1:
        from torch_mtia import door

        door.check_name(settings.privateuse1)
    os.environ.pop(environment.DEFER.name, None)  # processes that this one starts use the device, too
    try:
        from torch_mtia import _build
    except ImportError as error:
        raise ImportError(
            "torch_mtia is not built in this folder: run pip install -e . --no-build-isolation there."
        ) from error
    if message := built_for_another_torch(_build.TORCH, torch.__version__):
        raise ImportError(f"{message}.")
    try:
        import torch_mtia._C as _C
    except ImportError as error:
        raise ImportError(
            f"torch_mtia's extension module does not load: {error}. Install torch_mtia again: it is missing, or was "
            "built for another Python."
        ) from error
    from torch_mtia import driver
    from torch_mtia.properties import DeviceProperties

    driver.configure(settings)
    _C._set_device_properties_type(DeviceProperties)
    _C._set_check_bounds(settings.check_bounds)
    _C._open_mtia()
    if not _C._hooks_registered_in_time():
        raise RuntimeError(
            "torch_mtia was imported too late: PyTorch looks for the hooks of its accelerator once in a process, and "
            "has already found none. Typical first uses are torch.accelerator.current_accelerator() and "
            "is_available(), torch.mtia.device_count(), Tensor.backward(), Tensor.is_pinned(), torch.compile and the "
            "profiler. Import torch_mtia directly after torch, or leave TORCH_DEVICE_BACKEND_AUTOLOAD unset, so that "
            "`import torch` loads it."
        )
    from torch_mtia import autograd_threads, distributed, inductor, kernels, lightning, upstream_gates

    upstream_gates.apply(torch.__version__)
    inductor.register()
    distributed.register()
    lightning.register()
    autograd_threads.settle_at_exit()
    if settings.sanitize:
        from torch_mtia.sanitizer import process

        process.watch(settings)
    if settings.privateuse1:
        from torch_mtia import privateuse1

        privateuse1.open_door(settings.privateuse1)
    else:
        kernels.register()
    _bring_names()


def _bring_names() -> None:
    """What the package offers beside the device."""
    global launch_host_function, make_graphed_callables
    from torch_mtia import fallback, graphs, memory, privateuse1  # noqa: F401
    from torch_mtia.graphs import make_graphed_callables
    from torch_mtia.streams import launch_host_function


def _is_run(module: str) -> bool:
    """Whether Python was started with `-m MODULE`."""
    return any(
        argument == f"-m{module}" or (option, argument) == ("-m", module)
        for option, argument in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    )


def _reports_errors() -> bool:
    """True for `python -m torch_mtia`, which shows why the package does not load instead of ending with a traceback."""
    return sys.argv[:1] == ["-m"] and _is_run("torch_mtia")


def _waits() -> bool:
    """Whether the backend is loaded only when somebody uses it."""
    return environment.DEFER.read_or_default(os.environ) or _is_run("torch_mtia.conformance")


def __getattr__(name: str) -> object:
    """The first use of a backend that waits for one."""
    if (_was_used and _load_error is None) or name not in (*__all__, "_C"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    return globals()[name]


try:
    import torch

    # PyTorch is at the end of its own import; whoever imports this package by name wants the device.
    if getattr(torch.__spec__, "_initializing", False) or _waits():
        _autoload()
    else:
        _load()
except Exception as error:
    if not _reports_errors():
        raise
    _load_error = _load_error or error
