"""PyTorch's device type `mtia`, for a stock PyTorch on any machine.

`import torch` is enough: PyTorch loads this package through its entry point of the group `torch.backends`, unless the
machine has a GPU for which PyTorch is built (Note [Beside another accelerator] in other_accelerators.py). Importing it
by name loads it in any case. Loading starts no thread and does not touch the device. If it cannot load, `import torch`
warns, and the first use of the device raises. In the processes of the conformance suite, whose device may be another,
it waits for a first use.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torch_mtia import environment
from torch_mtia._versions import __version__, built_for_another_torch, unsupported_torch

if TYPE_CHECKING:
    from torch_mtia import fallback, graphs, memory, privateuse1
    from torch_mtia.graphs import make_graphed_callables
    from torch_mtia.numerics_mode import numerics
    from torch_mtia.streams import launch_host_function
    from torch_mtia.upstream_gates import replacements

__all__ = [
    "__version__",
    "environment",
    "fallback",
    "graphs",
    "include_paths",
    "launch_host_function",
    "make_graphed_callables",
    "memory",
    "numerics",
    "privateuse1",
    "replacements",
]

# Where a name of __all__ is, if it is no module of its own.
_MODULES = {
    "make_graphed_callables": "graphs",
    "launch_host_function": "streams",
    "numerics": "numerics_mode",
    "replacements": "upstream_gates",
}

_is_imported_first = "torch" not in sys.modules  # by name, before PyTorch
_was_used = False  # loaded, or about to be
_load_error: Exception | None = None


def include_paths() -> list[str]:
    """Returns the include folder of `#include <torch_mtia/device/Extension.h>`, as a list of one path.

    `torch_mtia.cpp_extension` has the rest of what a build needs.
    """
    return [str(Path(__file__).resolve().parent / "include")]


def _autoload() -> None:
    """Loads the backend, unless it waits for its first use, or leaves the process to another accelerator.

    PyTorch calls it at the end of `import torch`, which must not fail for programs that do not use the device. So what
    went wrong is raised at the first use.
    """
    if _was_used or _waits() or _load_error is not None:  # an error has been announced
        return
    if reason := _reason_to_stay_away():
        from torch_mtia import unavailable

        unavailable.refuse(reason)
        del sys.modules[__name__]  # an import by name runs this module again
        return
    try:
        _load()
    except Exception as error:
        from torch_mtia import unavailable

        with contextlib.suppress(Warning):  # where warnings are errors
            unavailable.announce(error)


def _reason_to_stay_away() -> str:
    """Returns why `import torch` does not load the device, and how to load it; "" if it does."""
    if _is_imported_first:
        return ""
    wanted = environment.AUTOLOAD.read_or_default(os.environ)
    if wanted == "0":
        reason = f"{environment.AUTOLOAD.name} is 0"
    elif wanted == "auto" and not environment.PRIVATEUSE1.read_or_default(os.environ) and (other := _other()):
        reason = f"this machine has {other} devices, for which it leaves PyTorch alone"
    else:
        return ""
    return (
        f"torch_mtia has not loaded the device mtia, because {reason}. Write `import torch_mtia` directly after "
        f"`import torch`, or set {environment.AUTOLOAD.name}=1 before the process starts: mtia is then "
        "torch.accelerator of the process."
    )


def _other() -> str:
    """Returns the name of another accelerator that has devices here, or ""."""
    import torch

    version = torch.version
    if not (version.cuda or version.hip or version.xpu):
        return ""  # PyTorch is built for none
    from torch_mtia import other_accelerators

    return other_accelerators.present()


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
    if unavailable := sys.modules.get("torch_mtia.unavailable"):  # `import torch` has left the device out
        unavailable.withdraw()
    try:
        _load_backend()
    except Exception as error:
        _load_error = error
        raise


def _load_backend() -> None:
    import torch

    if message := unsupported_torch(torch.__version__):
        raise ImportError(f"{message}.")
    try:
        from torch_mtia import _build
    except ImportError as error:
        raise ImportError(
            "torch_mtia is not built in this folder: run pip install -e . --no-build-isolation there. (What "
            "torch-mtia-conformance installs has no device.)"
        ) from error
    if message := built_for_another_torch(_build.TORCH, torch.__version__):
        raise ImportError(f"{message}.")
    settings = environment.settings()
    if settings.privateuse1:
        from torch_mtia import backend

        backend.check_name(settings.privateuse1)
    # Processes that this one starts use the device, too.
    os.environ.pop(environment.DEFER.name, None)
    if settings.autoload == "auto" and _other():
        os.environ[environment.AUTOLOAD.name] = "1"
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
    _C._register_mtia()
    if not _C._hooks_registered_in_time():
        raise RuntimeError(
            "torch_mtia was imported too late: PyTorch looks for the hooks of its accelerator once in a process, and "
            "has already found none. Typical first uses are torch.accelerator.current_accelerator() and "
            "is_available(), torch.mtia.device_count(), Tensor.backward(), Tensor.is_pinned(), torch.compile and the "
            "profiler. Import torch_mtia directly after torch, or leave TORCH_DEVICE_BACKEND_AUTOLOAD unset, so that "
            "`import torch` loads it; beside a GPU, set TORCH_MTIA_AUTOLOAD=1."
        )
    from torch_mtia import autograd_threads, distributed, higher_order, kernels, multiprocessing, upstream_gates
    from torch_mtia.import_hooks import before_import

    upstream_gates.apply(torch.__version__)
    before_import(("torch._dynamo", "torch._inductor"), functools.partial(_register, "inductor"))
    before_import(("lightning", "lightning_fabric", "pytorch_lightning"), functools.partial(_register, "lightning"))
    distributed.register()
    higher_order.register()
    multiprocessing.register()
    autograd_threads.settle_at_exit()
    if settings.numerics != "default":
        from torch_mtia.numerics_mode import numerics

        numerics(settings.numerics)
    if settings.sanitize:
        from torch_mtia.sanitizer import process

        process.watch(settings)
    if settings.targets:
        from torch_mtia.portability import process_report

        process_report.start(settings.targets, settings.refuse)
    if settings.privateuse1:
        from torch_mtia import privateuse1

        privateuse1.register_device_type(settings.privateuse1)
    else:
        kernels.register()
        if settings.fallback:
            _register("fallback")


def _register(module: str) -> None:
    importlib.import_module(f"{__name__}.{module}").register()


def _is_run(module: str) -> bool:
    """Whether Python was started with `-m MODULE`."""
    return any(
        argument == f"-m{module}" or (option, argument) == ("-m", module)
        for option, argument in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    )


def _reports_errors() -> bool:
    """Returns whether this is `python -m torch_mtia`, which shows an error of the import in place of a traceback."""
    return sys.argv[:1] == ["-m"] and _is_run("torch_mtia")


def _waits() -> bool:
    """Whether the backend is loaded only when somebody uses it."""
    return environment.DEFER.read_or_default(os.environ) or _is_run("torch_mtia.conformance")


def __getattr__(name: str) -> object:
    """Imports what the package offers beside the device when it is first used. That is the first use of a backend which
    waits for one, too."""
    if name not in (*__all__, "_C", "inductor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _load()
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, name)}")
    value = globals()[name] = getattr(module, name) if name in _MODULES else module
    return value


try:
    import torch

    # At the end of its own import, PyTorch calls _autoload; whoever imports this package by name wants the device.
    if not getattr(torch.__spec__, "_initializing", False) and not _waits():
        _load()
except Exception as error:
    if not _reports_errors():
        raise
    _load_error = _load_error or error
