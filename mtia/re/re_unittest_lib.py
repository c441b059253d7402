"""What test suites of other projects use to initialize the device, where they find `mtia`.

Helion's and xformers' tests import this module of a runtime that is not published.
"""

from __future__ import annotations

import unittest

import torch


def init_mtia_device() -> None:
    """Initializes the devices, if nothing has used one yet."""
    torch.mtia.init()


class MTIAUnittest(unittest.TestCase):
    """A test case whose class initializes the devices."""

    @classmethod
    def setUpClass(cls) -> None:
        init_mtia_device()  # and no super(): Helion calls the function with a class that is not derived from this one
