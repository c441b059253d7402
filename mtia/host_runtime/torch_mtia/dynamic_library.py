"""Loads the device's library, if `import torch` has not. Code that Inductor generates for mtia imports this module.

It touches no device, so processes that only compile may import it. Upstream:
torch/_inductor/codegen/python_wrapper_mtia.py.
"""

import torch_mtia  # noqa: F401
