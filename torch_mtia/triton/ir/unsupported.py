"""What the compiler says that it cannot do."""

from __future__ import annotations

from torch_mtia.triton.ir.module import Location


class Unsupported(Exception):
    """What the compiler cannot do, and where in the kernel."""

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
