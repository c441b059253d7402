"""What setup.py writes when it builds the package."""

TORCH: str
"""The version of PyTorch that the package was built for."""
