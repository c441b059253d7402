"""What launches a kernel of compiled code, and chooses its configuration: upstream's autotuner, for the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._inductor import config
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, DebugAutotuner
from torch.autograd import profiler
from torch.utils._debug_mode import _mode

from torch_mtia import _C


class _OnMTIA(CachingAutotuner):
    """What both autotuners of the device do otherwise."""

    def _create_compile_options(self, cfg: Any, compile_meta: dict[str, Any]) -> dict[str, Any]:
        """Conversions to fp8 in compiled code give what operators give, also of what is too large: infinity for e5m2.
        Kernels of Triton saturate, and so do the program's own."""
        options: dict[str, Any] = super()._create_compile_options(cfg, compile_meta)
        if self.heuristic_type != HeuristicType.USER_AUTOTUNE:
            options["saturate_fp8"] = False
        return options

    def _build_fast_launcher(self, launcher: Any) -> Callable[..., None] | None:
        """Returns a builtin function that launches the kernel, or None. Upstream has one for CUDA."""
        if launcher.store_cubin:
            return functools.partial(self._store_and_launch, launcher)
        if not self.inductor_meta.get("use_fast_triton_launcher", config.use_fast_triton_launcher):
            return None
        from torch_mtia.inductor.fast_launcher import make_fast_launcher

        return make_fast_launcher(launcher)

    def _store_and_launch(self, launcher: Any, *args: Any, stream: int) -> None:
        """Launches while a package is made. Upstream stores the image at the first launch alone, under the name that
        the kernel has in its package, which those of other packages of this process have too."""
        self.save_gpu_kernel(stream, launcher)
        launcher(*args, stream=stream)

    def save_gpu_kernel(self, stream: Any, launcher: Any) -> None:
        """Stores the image where a package takes it from, which upstream looks for under the names of other devices."""
        launcher.bin.asm["cubin"] = launcher.bin.kernel
        super().save_gpu_kernel(stream, launcher)  # type: ignore[no-untyped-call]


class MTIAAutotuner(_OnMTIA):
    """Launches by a builtin function once the configuration is chosen, with what found it in Python before."""

    run = _C._fast_run(CachingAutotuner, CachingAutotuner.run, vars(profiler), vars(_mode))


class MTIADebugAutotuner(_OnMTIA, DebugAutotuner):
    """Reports the bandwidth of each kernel, for `profile_bandwidth`."""
