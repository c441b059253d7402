"""What tritonbench imports, with `--device mtia`, before it compiles for the device.

In a runtime that is not published, it registers backends of `torch.compile`. Here the device is Inductor's, whose
parts are registered when the device's library is loaded.
"""

import torch_mtia  # noqa: F401
