"""Versions: of this package, and of the PyTorch it works with.

Imports nothing, so that setup.py can run it before anything is installed.
"""

from __future__ import annotations

__version__ = "0.1.0"

# A backend uses interfaces of PyTorch that may change with every minor version, so each row was built and tested. The
# rows are ascending (major, minor); pyproject.toml repeats torch_requirement() for isolated builds.
SUPPORTED_TORCH: tuple[tuple[int, int], ...] = ((2, 13), (2, 14), (2, 15))


def torch_requirement() -> str:
    """The requirement specifier of the supported versions."""
    (major, first), (_, last) = SUPPORTED_TORCH[0], SUPPORTED_TORCH[-1]
    missing = [f"!={major}.{minor}.*," for minor in range(first, last) if (major, minor) not in SUPPORTED_TORCH]
    return f"torch>={major}.{first},{''.join(missing)}<{major}.{last + 1}"


def built_for_another_torch(built_for: str, version: str) -> str | None:
    """What is wrong and what to do if the extension module was built for another minor version, otherwise None."""
    if built_for.split(".")[:2] == version.split(".")[:2]:
        return None
    return (
        f"torch_mtia's extension module was built for PyTorch {built_for}, and this is PyTorch {version}: install "
        "torch_mtia again, or build it in its source folder with pip install -e . --no-build-isolation"
    )


def unsupported_torch(version: str) -> str | None:
    """What is wrong with this PyTorch version and what to do, or None if it is supported."""
    if tuple(version.split(".")[:2]) in {(str(major), str(minor)) for major, minor in SUPPORTED_TORCH}:
        return None
    supported = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED_TORCH)
    return (
        f"torch_mtia {__version__} works with PyTorch {supported}, and this is PyTorch {version}. "
        f"Install a supported one (pip install '{torch_requirement()}') or a torch_mtia made for this one"
    )
