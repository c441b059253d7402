"""A backend of PrivateUse1 that is not torch_mtia's: the device `foreign`, of the library FOREIGN_LIBRARY."""

from __future__ import annotations

import os

import torch
from torch.utils import backend_registration

torch.ops.load_library(os.environ["FOREIGN_LIBRARY"])
backend_registration.rename_privateuse1_backend("foreign")

from . import device_module  # noqa: E402 - the functions of the library

torch._register_device_module("foreign", device_module)
backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
