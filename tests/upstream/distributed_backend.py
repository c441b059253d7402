"""PyTorch's own tests of a backend of process groups, which its wheel has, with tensors of the CPU:

python -m pytest tests/upstream/distributed_backend.py                # of tmccl
BACKEND=gloo python -m pytest tests/upstream/distributed_backend.py   # of gloo, to compare
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

import torch
from torch.testing._internal import common_distributed

from torch_mtia.distributed import BACKEND

FOLDER = Path(tempfile.mkdtemp())
SETTINGS = {"BACKEND": BACKEND, "WORLD_SIZE": "4", "TORCH_MTIA_DEVICES": "4", "TEMP_DIR": str(FOLDER)}
for variable, value in SETTINGS.items():
    os.environ.setdefault(variable, value)
for name in ("barrier", "test_dir"):
    (FOLDER / name).mkdir(exist_ok=True)


class LikeGloo(str):
    """A name for which the tests' conditions hold that name gloo: they know no other backend for the CPU."""

    def __hash__(self) -> int:
        return hash("gloo")

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other


environment = dict(os.environ)
if environment["BACKEND"] == BACKEND:
    environment["BACKEND"] = LikeGloo(BACKEND)
    common_distributed.DistTestCases.backend_feature["plugin"].add(BACKEND)
with mock.patch.object(os, "environ", environment):  # the conditions are looked at when the module is imported
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestBackend(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()  # type: ignore[no-untyped-call]
        # Not spawned: a child that imports PyTorch again takes longer than most tests.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


del DistributedTest, TestDistBackend  # classes that are no tests here
