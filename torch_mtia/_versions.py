"""Versions: of this package, and of the PyTorch it works with.

Imports nothing, so that setup.py can run it before anything is installed.
"""

from __future__ import annotations

__version__ = "0.1.0"

# The versions of PyTorch, (major, minor), each with its Triton. A backend uses interfaces that may change with every
# minor version, so each row was built and tested. Ascending.
TRITON_OF: dict[tuple[int, int], str] = {(2, 13): "3.7", (2, 14): "3.8", (2, 15): "3.9"}
SUPPORTED_TORCH = tuple(TRITON_OF)

# What the conformance suite needs beside PyTorch, whose databases of tests import expecttest and scipy.
CONFORMANCE = ("pytest>=8", "pytest-xdist>=3.6", "packaging", "pyyaml", "tqdm", "numpy", "expecttest", "scipy")


def torch_requirement() -> str:
    """Returns the requirement specifier of the supported versions."""
    (major, first), (_, last) = SUPPORTED_TORCH[0], SUPPORTED_TORCH[-1]
    missing = [f"!={major}.{number}.*," for number in range(first, last) if (major, number) not in SUPPORTED_TORCH]
    return f"torch>={major}.{first},{''.join(missing)}<{major}.{last + 1}"


def triton_requirement(torch_version: str) -> str:
    """Returns the requirement specifier of the Triton that goes with a version of PyTorch."""
    major, number = map(int, minor(torch_version).split("."))
    return f"triton=={TRITON_OF[major, number]}.*"


def minor(version: str) -> str:
    """Returns "2.13" for "2.13.0+cpu"."""
    return ".".join(version.split(".")[:2])


def built_for_another_torch(built_for: str, version: str) -> str | None:
    """Returns what is wrong and what to install if the package was built for another minor version, otherwise None."""
    ours, theirs = minor(built_for), minor(version)
    if ours == theirs:
        return None
    return (
        f"torch_mtia {__version__} was built for PyTorch {ours}, and this is PyTorch {version}: pip install the one "
        f"whose version ends in +torch{theirs}, or build it from its sources, or pip install 'torch=={ours}.*'"
    )


def unsupported_torch(version: str) -> str | None:
    """Returns what is wrong with this PyTorch version and what to do, or None if it is supported."""
    if minor(version) in {f"{major}.{number}" for major, number in SUPPORTED_TORCH}:
        return None
    supported = ", ".join(f"{major}.{number}" for major, number in SUPPORTED_TORCH)
    return (
        f"torch_mtia {__version__} works with PyTorch {supported}, and this is PyTorch {version}. "
        f"Install a supported one (pip install '{torch_requirement()}') or a torch_mtia made for this one"
    )
