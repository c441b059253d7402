"""Settings of Inductor on mtia, beside PyTorch's `torch._inductor.config`. They are part of the keys of its caches.

`torch_mtia.inductor.config.max_kernel_io_buffers = 8` holds for what is compiled from then on, and
`with torch_mtia.inductor.config.patch(max_kernel_io_buffers=8):` for what is compiled within.
"""

import sys
from typing import TYPE_CHECKING

from torch.utils._config_module import install_config_module

from torch_mtia.inductor.cache_key import identity

max_kernel_io_buffers: int | None = None
"""How many different buffers a Triton kernel may read and write, or None; at least 2. For devices whose kernels take a
limited number of arguments. Holds for every kernel that compiled code launches: see guardrails.py."""

_identity: str = identity()
"""Not to be set: this version of the package, for the keys of caches."""

if TYPE_CHECKING:
    from torch.utils._config_typing import *  # noqa: F403 - what install_config_module adds, such as patch

install_config_module(sys.modules[__name__])
