"""Calls a driver, a library behind mtia_runtime.h, without PyTorch.

Types, constants and prototypes are read from the header, so that there is nothing here that could differ from it. The
module imports nothing of the package: a test runs it in a process of its own.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADER = Path(__file__).resolve().parents[1] / "include" / "torch_mtia" / "runtime" / "mtia_runtime.h"

_SCALARS: dict[str, Any] = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "mtia_device_ptr": ctypes.c_uint64,
    "mtia_copy_kind": ctypes.c_int,
    "const char*": ctypes.c_char_p,
    "char": ctypes.c_char,
}

_TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
_STRUCTS = {
    match["name"]: match["body"]
    for match in re.finditer(r"typedef struct (?P<name>\w+) \{(?P<body>.*?)\}", _TEXT, re.DOTALL)
}

_ENUMERATORS = {match[1]: int(match[2]) for match in re.finditer(r"(MTIA_\w+) = (\d+)", _TEXT)}
_BITS = {
    match[1]: 1 << int(match[2])
    for match in re.finditer(r"#define (MTIA_\w+) \((?:UINT64_C\(1\)|1u) << (\d+)\)", _TEXT)
}
CONSTANTS = _ENUMERATORS | _BITS
STATUSES = {number: name for name, number in CONSTANTS.items() if re.match(r"MTIA_(SUCCESS|ERROR_)", name)}


def _type(text: str) -> Any:
    """Handles and pointers to anything but text are addresses."""
    text = " ".join(text.split())
    if text in _SCALARS:
        return _SCALARS[text]
    return structure(text) if text in _STRUCTS else ctypes.c_void_p


def _fields(body: str) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        if function := re.match(r"[\w\s*]+\(\*(\w+)\)\(", declaration):
            fields.append((function[1], ctypes.c_void_p))
            continue
        parts = re.fullmatch(r"(.*?[\s*])(\w+)(?:\[(\d+)\])?", declaration, re.DOTALL)
        assert parts is not None, declaration
        kind = _type(parts[1].strip())
        fields.append((parts[2], kind * int(parts[3]) if parts[3] else kind))
    return fields


LEAST = {f"mtia_{match[1].lower()}": int(match[2]) for match in re.finditer(r"#define MTIA_(\w+)_SIZE_1 (\d+)u", _TEXT)}
"""The structs that may grow, with their sizes when ABI version 1 began."""

_made: dict[str, Any] = {}


def structure(name: str) -> Any:
    """Returns the ctypes.Structure of a struct of the header."""
    if name not in _made:
        _made[name] = type(name, (ctypes.Structure,), {"_fields_": _fields(_STRUCTS[name])})
    return _made[name]


def sized(struct_name: str, **values: Any) -> Any:
    """Returns a struct whose `struct_size` says how large it is."""
    made = structure(struct_name)(**values)
    made.struct_size = ctypes.sizeof(made)
    return made


FUNCTIONS: dict[str, list[Any]] = {
    match["name"]: [
        _type(re.sub(r"(?<=[\s*])\w+$", "", argument.strip()).strip())
        for argument in match["arguments"].split(",")
        if argument.strip() != "void"
    ]
    for match in re.finditer(
        r"(?:mtia_status|const char\*) \(\*(?P<name>\w+)\)\((?P<arguments>[^()]*)\)", _STRUCTS["mtia_runtime_api"]
    )
}
"""The functions of the table, with the types of their arguments."""

CAPABILITY: dict[str, str | None] = {
    match["name"]: match["capability"]
    for match in re.finditer(r"FUNCTION\((?P<name>\w+), MTIA_(?:OPTIONAL|CAPABILITY_(?P<capability>\w+))\)", _TEXT)
}
"""The optional functions, with the capability that says whether they are there; None: their entry says it."""

_HEAD = structure("mtia_runtime_api").last_error_message.offset

_PAGE = 4096

RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
RELOCATE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
DESTROY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PARALLEL_FOR = ctypes.CFUNCTYPE(
    None,
    *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
)


def _run_in_one_piece(begin: int, end: int, _grain: int, _threads: int, body: int, args: int) -> None:
    """mtia_parallel_for on the calling thread."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(body)(args, begin, end)


_callback = _PARALLEL_FOR(_run_in_one_piece)
parallel_for = ctypes.cast(_callback, ctypes.c_void_p)


class DriverFailure(AssertionError):
    """A function did not return what it should have."""


def _known_part(address: int) -> Any:
    """Returns the table at the address, which may be shorter or longer than the header has it."""
    known = structure("mtia_runtime_api")
    size = min(ctypes.c_uint32.from_address(address).value, ctypes.sizeof(known))
    if size < _HEAD:
        raise DriverFailure(f"the table has {size} bytes, which is less than its head")
    size -= size % ctypes.sizeof(ctypes.c_void_p)
    return known.from_buffer_copy(ctypes.string_at(address, size).ljust(ctypes.sizeof(known), b"\0"))


class Driver:
    """A library and its table. Raises OSError or DriverFailure for one that is no driver."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        get_api: Any = self.library.mtia_runtime_get_api
        get_api.restype, get_api.argtypes = ctypes.c_void_p, [ctypes.c_uint32]
        self.get_api: Callable[[int], int | None] = get_api
        address = get_api(1)
        if address is None:
            raise DriverFailure("mtia_runtime_get_api(1) returned null")
        self.table = _known_part(address)
        """As this header has it: what the driver's lacks is null. `struct_size` is the driver's."""

    def has(self, capability: str) -> bool:
        """Whether the driver claims MTIA_CAPABILITY_<capability>."""
        return bool(self.table.capabilities & CONSTANTS[f"MTIA_CAPABILITY_{capability}"])

    def offers(self, function: str) -> bool:
        """Whether the driver has to have the function, or says that it has."""
        capability = CAPABILITY.get(function)
        if capability is not None:
            return self.has(capability)
        return function not in CAPABILITY or bool(getattr(self.table, function))

    def call(self, function: str, *arguments: Any) -> str:
        """Returns the name of the status that the function returns."""
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *FUNCTIONS[function])
        status = prototype(getattr(self.table, function))(*arguments)
        return STATUSES.get(status, f"status {status}")

    def __call__(self, function: str, *arguments: Any) -> None:
        """Raises DriverFailure for anything but MTIA_SUCCESS."""
        status = self.call(function, *arguments)
        if status != "MTIA_SUCCESS":
            raise DriverFailure(f"{function} returned {status}: {self.message()}")

    def message(self) -> str:
        text = ctypes.CFUNCTYPE(ctypes.c_char_p)(self.table.last_error_message)()
        if text is None:
            raise DriverFailure("last_error_message returned null")
        return str(text.decode())

    def get(self, function: str, kind: Any, *arguments: Any) -> Any:
        """Returns what a function writes where its last argument points to."""
        value = kind()
        self(function, *arguments, ctypes.byref(value))
        return value.value

    def initialize(self, **parameters: Any) -> str:
        values = {"num_devices": 2, "memory_per_device": 256 << 20} | parameters
        params = sized("mtia_init_params", parallel_for=parallel_for, **values)
        return self.call("initialize", ctypes.byref(params))


def kernel_image(code: bytes, arguments: list[tuple[int, int]], name: str, **header: int) -> bytes:
    """See Note [Kernel image]. `arguments`: kind and size of each, all of 8 bytes; `relocation` is one offset."""
    relocations = [header.pop("relocation")] if "relocation" in header else []
    fields = structure("mtia_kernel_image_header")
    size = ctypes.sizeof(fields)
    described = b"".join(struct.pack("<4I", kind, width, 8 * i, 0) for i, (kind, width) in enumerate(arguments))
    words = struct.pack(f"<{len(relocations)}Q", *relocations)
    values = {
        "magic": int(re.search(r"IMAGE_MAGIC UINT64_C\((\w+)\)", _TEXT)[1], 16),  # type: ignore[index]
        "version": 1,
        "header_size": size,
        "image_size": _PAGE + len(code),
        "code_offset": _PAGE,
        "code_size": len(code),
        "relocations_offset": size + len(described),
        "num_relocations": len(relocations),
        "num_arguments": len(arguments),
        "packed_arguments_size": 8 * len(arguments),
        "cost_per_program": 10,
    }
    made = fields(**(values | header), name=name.encode())
    return (bytes(made) + described + words).ljust(_PAGE, b"\0") + code
