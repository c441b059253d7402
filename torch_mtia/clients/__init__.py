"""Replacements in libraries that use PyTorch and choose a device from a list of their own. See docs/clients.md.

The wheels of torch_mtia leave this package out. `torch_mtia[clients]` installs it, as the distribution
torch-mtia-clients; from the sources, torch_mtia has it.
"""
