"""The conformance suite: what works on a device, and what has changed. `python -m torch_mtia.conformance --help`.

Flow: suites (pytest modules, or PyTorch's own test files) -> plugin, in worker processes -> results -> ledger (what was
expected of each test) -> report. docs/conformance.md tells how to use it.
"""
