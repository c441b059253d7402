"""What Triton finds through the entry point `triton.backends`: the backend, without the device.

Triton imports the backends that are installed when it is imported itself, in every process. The classes here stand in
for those of torch_mtia.triton: nothing of torch_mtia is imported before Triton has use for one, and nothing at all
where TORCH_DEVICE_BACKEND_AUTOLOAD or TORCH_MTIA_DEFER keeps the device away and nobody has loaded it by name.
"""

import os
import sys


def is_wanted() -> bool:
    """Whether the device is loaded, or PyTorch would load it by itself."""
    autoload, defer = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1"), os.environ.get("TORCH_MTIA_DEFER", "0")
    return "torch_mtia._C" in sys.modules or (autoload, defer) == ("1", "0")
