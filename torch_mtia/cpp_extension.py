"""The flags and folders of a C++ extension for the device, for `torch.utils.cpp_extension`.

    setup(ext_modules=[MtiaExtension("my_operators", ["my_operators.cpp"])], cmdclass={"build_ext": BuildExtension})

or, without a setup.py,

    torch.utils.cpp_extension.load(
        "my_operators", ["my_operators.cpp"], extra_cflags=COMPILE_FLAGS, extra_include_paths=include_paths(),
        extra_ldflags=link_flags(), is_python_module=False)

See docs/extensions.md.
"""

from __future__ import annotations

from typing import Any

from setuptools import Extension
from torch.utils.cpp_extension import CppExtension

from torch_mtia import include_paths
from torch_mtia.environment import LIBRARY_FOLDER
from torch_mtia.registration import generate_registration

__all__ = ["COMPILE_FLAGS", "MtiaExtension", "generate_registration", "include_paths", "link_flags"]

COMPILE_FLAGS = ["-std=c++20"]
"""What the compiler needs for the headers, beside `include_paths()`."""


def link_flags() -> list[str]:
    """Returns the linker's arguments for the functions of the headers: the path of libtorch_mtia.so."""
    return [str(LIBRARY_FOLDER / "libtorch_mtia.so")]


def MtiaExtension(name: str, sources: list[str], **options: Any) -> Extension:
    """Returns a `torch.utils.cpp_extension.CppExtension`, of the same options, for code that includes the headers."""
    options["include_dirs"] = [*options.get("include_dirs", ()), *include_paths()]
    flags = options.get("extra_compile_args", ())
    if isinstance(flags, dict):
        options["extra_compile_args"] = flags | {"cxx": [*COMPILE_FLAGS, *flags.get("cxx", ())]}
    else:
        options["extra_compile_args"] = [*COMPILE_FLAGS, *flags]
    options["extra_link_args"] = [*options.get("extra_link_args", ()), *link_flags()]
    extension: Extension = CppExtension(name, sources, **options)
    return extension
