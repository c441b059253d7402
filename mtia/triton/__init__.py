"""What Triton finds through the entry point `triton.backends`: the backend, without the device.

Triton imports the backends that are installed when it is imported itself, in every process. The classes here stand in
for those of torch_mtia.triton: nothing of torch_mtia is imported before Triton has use for one, and nothing at all
where `import torch` does not load the device and nobody has loaded it by name.
"""

import os
import sys


def is_wanted() -> bool:
    """Whether the device is loaded, or PyTorch loads it when it is imported, as Triton's other drivers import it."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        import torch  # noqa: F401
    return "torch_mtia._C" in sys.modules
