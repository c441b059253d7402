"""A backend of PrivateUse1 that is not torch_mtia's: the device `foreign`, of the library FOREIGN_LIBRARY."""

from __future__ import annotations

import os

import torch

torch.ops.load_library(os.environ["FOREIGN_LIBRARY"])
torch.utils.rename_privateuse1_backend("foreign")

from foreign_backend import device_module  # noqa: E402 - the functions of the library

torch._register_device_module("foreign", device_module)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
