"""Stands in for torch_mtia.triton.compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton.backends.compiler import BaseBackend

from mtia.triton import is_wanted

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget


class MTIABackend(BaseBackend):
    """Triton asks it for an instance, and gets one of the class that it stands in for."""

    def __new__(cls, target: GPUTarget) -> Any:
        from torch_mtia.triton.compiler import MTIABackend as Backend

        return Backend(target)

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        if not is_wanted():
            return False
        from torch_mtia.triton.compiler import MTIABackend as Backend

        return Backend.supports_target(target)


MTIABackend.__abstractmethods__ = frozenset()
