"""Settings of Inductor on mtia, beside PyTorch's `torch._inductor.config`. They are part of its cache keys.

`torch_mtia.inductor.config.max_kernel_io_buffers = 8` applies to later compilations, and
`with torch_mtia.inductor.config.patch(max_kernel_io_buffers=8):` to those inside the block.
"""

import sys
from typing import TYPE_CHECKING

from torch.utils._config_module import install_config_module

from torch_mtia.inductor.cache_key import identity

max_kernel_io_buffers: int | None = None
"""The most buffers that a Triton kernel of compiled code may read and write, at least 2; or None, for no limit.

For devices whose kernels take a limited number of arguments."""

_identity: str = identity()
"""Not to be set: this version of the package, for the keys of caches."""

if TYPE_CHECKING:
    from torch.utils._config_typing import *  # noqa: F403 - what install_config_module adds, such as patch

install_config_module(sys.modules[__name__])
