"""Faults to plant in the device: importing this package plants the one that CONFORMANCE_FAULT names.

Each is one thing that a device may do wrong, and names the tests of the conformance suite of which one must fail, and
how. tests/test_conformance_faults.py runs them.
"""

import os

from . import device, operators, use
from .planting import FAULTS

__all__ = ["FAULTS", "device", "operators", "use"]

if planted := os.environ.get("CONFORMANCE_FAULT"):
    FAULTS[planted].plant()
