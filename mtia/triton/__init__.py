"""What Triton finds through the entry point `triton.backends`: the backend, without the device.

Triton imports the backends that are installed when it is imported itself, in every process. The classes here stand in
for those of torch_mtia.triton: nothing of torch_mtia is imported before Triton has use for one, and nothing at all
where TORCH_DEVICE_BACKEND_AUTOLOAD keeps the device away and nobody has imported torch_mtia by name.
"""

import os
import sys


def is_wanted() -> bool:
    """Whether the device is loaded, or PyTorch would load it by itself."""
    return "torch_mtia" in sys.modules or os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
