"""Makes kernels of what Inductor has fused."""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen.triton import TritonScheduling

from torch_mtia.inductor import guardrails


class MTIAScheduling(TritonScheduling):
    """Upstream's, which keeps to the limit on buffers."""

    def generate_combo_kernel_code(self, *args: Any, **kwargs: Any) -> list[tuple[str | None, Any, Any]]:
        """Divides what is to be combined horizontally among kernels."""
        with guardrails.limited():
            return super().generate_combo_kernel_code(*args, **kwargs)
