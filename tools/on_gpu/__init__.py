"""Compares reports of kernels (docs/portability.md) with a GPU: compare.py says how, kernels.py has kernels for it."""
