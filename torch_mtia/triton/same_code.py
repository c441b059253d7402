"""What an autotuner measures once: configurations of the same code, which differ in what only a GPU has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from triton.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.jit import JITFunction

# Who has to see each configuration launched: for a GPU, they differ.
observers: set[object] = set()

Visible = tuple[tuple[str, Any], ...]
Measured = dict[Visible, dict[bytes, Any]]


def visible(autotuner: Autotuner, config: Config) -> Visible | None:
    """Returns what the kernel and its grid see of a configuration, or None if hooks or other functions see it all."""
    kernel = autotuner.fn
    if not isinstance(kernel, JITFunction) or kernel.pre_run_hooks or config.pre_hook:
        return None
    if autotuner.user_defined_pre_hook or autotuner.user_defined_post_hook:
        return None
    try:
        seen = tuple((name, value) for name, value in config.all_kwargs().items() if name in kernel.arg_names)
        hash(seen)
    except TypeError:
        return None
    return seen


def measured_once(
    measured: Measured,
    measure: Callable[[], Any],
    autotuner: Autotuner,
    config: Config,
    args: tuple[Any, ...],
    meta: Mapping[str, Any],
) -> Any:
    """Returns the times of a configuration: those in `measured` of another that has the same code, if there are any."""
    seen = visible(autotuner, config)
    if observers or seen is None or not meta.keys().isdisjoint(config.kwargs):  # which the autotuner refuses
        return measure()
    times = measured.setdefault(seen, {})
    launch = {**meta, **config.all_kwargs(), "warmup": True}
    if times and (image := _image(autotuner.fn, args, launch)) in times:
        return times[image]
    found = measure()
    if (image := _image(autotuner.fn, args, launch)) is not None:
        times[image] = found
    return found


def _image(kernel: JITFunction[Any], args: tuple[Any, ...], launch: dict[str, Any]) -> bytes | None:
    """Compiles, and launches nothing. Returns None if that fails, which the autotuner finds out as well."""
    try:
        compiled = kernel.run(*args, **launch)
    except Exception:
        return None
    return compiled.kernel if isinstance(compiled, CompiledKernel) else None
