"""Asks before each access which lanes may go on, and says what they are about to do: Note [Watched kernels] in
mtia_runtime.h. Only where a kernel is compiled to be watched: it is several times slower then."""

from __future__ import annotations

from collections.abc import Callable

from torch_mtia.triton import abi, image
from torch_mtia.triton.emit.environment import CONTEXT, PROGRAM, Environment
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Block, Op
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, element_of, integer, lanes_of, vector_type
from torch_mtia.triton.plan.instrumentation import INFINITY, ONLY_NAN

ACCESS = "watched_access"
_NULL = Value("null", "ptr")
_NONE = integer(0, "i64")


def begin_program(env: Environment) -> None:
    _tell_of_program(env.b, abi.PROGRAM_BEGINS_AMONG_OTHERS if env.switches else abi.PROGRAM_BEGINS)


def end_program(env: Environment) -> None:
    """Of those that are interleaved."""
    _tell_of_program(env.b, abi.PROGRAM_ENDS)


def _tell_of_program(b: Builder, what: int) -> None:
    _ask(b, _NULL, integer(what, "i64"), _NONE, _NULL, _NONE, _NULL)


def begin_store(env: Environment, op: Op, size: int) -> None:
    """Before each run of a statement that stores elements of `size` bytes."""
    _ask(env.b, _site(env, op, size), _NONE, _NONE, _NULL, _NONE, _NULL)


def allowed(
    env: Environment, op: Op, address: Lane, size: int, mask: Lane | None, width: int, stored: Value | None = None
) -> Lane:
    """The mask of the lanes that may go on, of those of `mask`. `stored`: what the strip writes to memory."""
    b, site = env.b, _site(env, op, size)
    values = _NULL
    if stored is not None:
        values = b.alloca(max(width, 1), element_of(stored))
        b.store(stored, values, size)
    if not width or (stored is None and address.uniform and (mask is None or mask.uniform)):
        wanted = integer(1, "i64") if mask is None else b.zext(mask.value, "i64")
        granted = _ask(b, site, address.value, _NONE, _NULL, wanted, values)
        return Lane(b.trunc(granted, "i1"))
    wanted = integer((1 << width) - 1, "i64")
    if mask is not None:
        bits = b.define(f"i{width}", f"bitcast {materialize(b, mask, width)} to i{width}")
        wanted = b.zext(bits, "i64") if width < 64 else bits
    if address.stride is None:
        addresses = b.alloca(width, "i64")
        b.store(address.value, addresses, 8)
        granted = _ask(b, site, _NONE, _NONE, addresses, wanted, values)
    else:
        stride = integer(address.stride, "i64") if isinstance(address.stride, int) else address.stride
        granted = _ask(b, site, address.value, stride, _NULL, wanted, values)
    bits = b.define(f"i{width}", f"trunc {granted} to i{width}") if width < 64 else granted
    type = vector_type(width, "i1")
    return Lane(b.define(type, f"bitcast {bits} to {type}"), None)


def enter(env: Environment, block: Block) -> None:
    """Says that the program enters a block, if they are counted: a site that neither reads nor writes."""
    if not env.block_numbers:
        return
    number, ref = env.block_numbers[block], f"@block{len(env.b.globals)}"
    nothing = env.b.string(b"")
    fields = f"i32 0, i32 0, i32 0, i32 0, i64 {number}, {nothing}, {nothing}"
    env.b.globals.append(f"{ref} = private constant {{ i32, i32, i32, i32, i64, ptr, ptr }} {{ {fields} }}, align 8")
    _ask(env.b, Value(ref, "ptr"), _NONE, _NONE, _NULL, integer(1, "i64"), _NULL)


# What makes NaN or infinity -------------------------------------------------------------------------------------------

COMPUTED = "watched_computed"
_REINTERPRETS = ("arith.bitcast", "tt.bitcast", "arith.constant", "arith.select")  # makes no numbers


def computed(
    env: Environment, op: Op, operands: list[Lane], results: list[Lane], width: int, across: Op | None = None
) -> None:
    """Says in which lanes an operation makes NaN of operands that are not NaN, or infinity of finite ones. `across`:
    the one across lanes that it is a part of; what that makes may come into all of them."""
    if op.name in _REINTERPRETS:
        return
    b = env.b
    for value, lane in zip(op.results, results, strict=True):
        element = value.type.element
        if element not in INFINITY:
            continue
        wide = 0 if lane.uniform else width
        made_nan, made_infinity = _not_finite(b, element, materialize(b, lane, wide))
        for each, given in zip(op.operands, operands, strict=True):
            if each.type.element not in INFINITY:
                continue
            given_nan, given_infinity = _not_finite(b, each.type.element, materialize(b, given, wide))
            either = b.binary("or", given_nan, given_infinity)
            made_nan = b.select(given_nan, b.integer_like(0, made_nan), made_nan)
            made_infinity = b.select(either, b.integer_like(0, made_infinity), made_infinity)
        made = made_nan if env.follows == ONLY_NAN else b.binary("or", made_nan, made_infinity)
        if wide and across is not None:
            made = b.intrinsic(f"llvm.vector.reduce.or.v{wide}i1", "i1", made)
        if made.type == "i1":
            lanes = b.select(made, integer(-1, "i64"), integer(0, "i64"))
        else:
            bits = b.define(f"i{wide}", f"bitcast {made} to i{wide}")
            lanes = b.zext(bits, "i64") if wide < 64 else bits
        _tell_computed(b, _computing_site(env, across or op, element_size(element)), lanes)


def is_followed(env: Environment, element: str) -> bool:
    """Whether it matters that a number of this type is not finite."""
    return bool(env.follows) and element in INFINITY


def passed(env: Environment, op: Op, results: list[Value]) -> None:
    """Says whether what is not finite is among the results of an operation across lanes, wherever it was made."""
    for value, result in zip(results, op.results, strict=True):
        if is_followed(env, result.type.element):
            either = env.b.binary("or", *_not_finite(env.b, result.type.element, value))
            _tell_passed(env, op, _any(env.b, [either]))


def _tell_passed(env: Environment, op: Op, flag: Value) -> None:
    site = _describe(env, op, abi.SITE_COMPUTES | abi.SITE_READS, 0, -1, "")
    _tell_computed(env.b, site, env.b.select(flag, integer(-1, "i64"), integer(0, "i64")))


def exchanged(env: Environment, op: Op, address: Value, element: str, old: Value, given: Value, new: Value) -> None:
    """Says what an atomic operation has made of what was there and what it was given, and stored."""
    b, size = env.b, element_size(element)
    is_given = b.binary("or", *_not_finite(b, element, given))
    _tell_passed(env, op, is_given)  # elements of strips are stored one by one
    made = b.select(is_given, integer(0, "i1"), _made(env, element, old, new))
    _tell_computed(b, _computing_site(env, op, size), b.select(made, integer(-1, "i64"), integer(0, "i64")))
    slot = b.alloca(1, new.type)
    b.store(new, slot, size)
    site = _accessing_site(env, op, abi.SITE_COMPUTES | abi.SITE_WRITES, size)
    _ask(b, site, address, _NONE, _NULL, integer(1, "i64"), slot)


def summed(
    env: Environment, op: Op, element: str, before: list[Value], after: list[Value], zeros: Callable[[], list[Value]]
) -> None:
    """Says whether products that an operation has added to numbers `before` make NaN or infinity of finite ones.
    `zeros`: sums of the factors times 0, which are NaN where one of them is not finite; asked for if need be."""
    b = env.b
    wanted = [_made(env, element, old, new) for old, new in zip(before, after, strict=True)]
    with b.when(_any(b, wanted)):
        made = [b.binary("and", each, b.fcmp("ord", zero, zero)) for each, zero in zip(wanted, zeros(), strict=True)]
        some = _any(b, made)
        _tell_passed(env, op, b.binary("xor", some, integer(1, "i1")))
        lanes = b.select(some, integer(-1, "i64"), integer(0, "i64"))
        _tell_computed(b, _computing_site(env, op, element_size(element)), lanes)


def _made(env: Environment, element: str, old: Value, new: Value) -> Value:
    b = env.b
    nan, infinity = _not_finite(b, element, new)
    old_nan, old_infinity = _not_finite(b, element, old)
    made = nan if env.follows == ONLY_NAN else b.binary("or", nan, infinity)
    return b.select(b.binary("or", old_nan, old_infinity), b.integer_like(0, made), made)


def _any(b: Builder, flags: list[Value]) -> Value:
    some = flags[0]
    for each in flags[1:]:
        some = b.binary("or", some, each)
    lanes = lanes_of(some)
    return b.intrinsic(f"llvm.vector.reduce.or.v{lanes}i1", "i1", some) if lanes else some


def _not_finite(b: Builder, element: str, value: Value) -> tuple[Value, Value]:
    """Whether it is NaN, and whether it is infinite."""
    bits = b.bitcast(value, f"i{8 * element_size(element)}")
    infinity = INFINITY[element]
    magnitude = b.binary("and", bits, b.integer_like((1 << (8 * element_size(element) - 1)) - 1, bits))
    return (
        b.icmp("ugt", magnitude, b.integer_like(infinity, magnitude)),
        b.icmp("eq", magnitude, b.integer_like(infinity, magnitude)),
    )


def _tell_computed(b: Builder, site: Value, lanes: Value) -> None:
    if COMPUTED not in b.functions:
        _define_computed(b)
    b.emit(f"call void @{COMPUTED}({', '.join(map(str, [CONTEXT, site, *PROGRAM, lanes]))})")


def _define_computed(b: Builder) -> None:
    if ACCESS not in b.functions:
        _define_access(b)
    context, site, lanes = Value("%context", "ptr"), Value("%site", "ptr"), Value("%lanes", "i64")
    programs = [Value(f"%program_{axis}", "i32") for axis in "xyz"]
    with b.function(COMPUTED, "void", [context, site, *programs, lanes], "noinline #0"):
        some, none = b.label("some"), b.label("none")
        b.branch(b.icmp("ne", lanes, _NONE), some, none)
        b.start(some)
        passed = [context, site, *programs, _NONE, _NONE, _NULL, lanes, _NULL]
        b.emit(f"call i64 @{ACCESS}({', '.join(map(str, passed))})")
        b.emit("ret void")
        b.start(none)
        b.emit("ret void")


def _computing_site(env: Environment, op: Op, size: int) -> Value:
    only_nan = abi.SITE_FLOAT if env.follows == ONLY_NAN else 0
    return _describe(env, op, abi.SITE_COMPUTES | only_nan, size, -1, "")


def _ask(
    b: Builder, site: Value, address: Value, stride: Value, addresses: Value, lanes: Value, values: Value
) -> Value:
    if ACCESS not in b.functions:
        _define_access(b)
    passed = [CONTEXT, site, *PROGRAM, address, stride, addresses, lanes, values]
    return b.define("i64", f"call i64 @{ACCESS}({', '.join(map(str, passed))})")


def _define_access(b: Builder) -> None:
    """Asks the watch, if there is one."""
    context, lanes = Value("%context", "ptr"), Value("%lanes", "i64")
    programs = [Value(f"%program_{axis}", "i32") for axis in "xyz"]
    described = [Value("%address", "i64"), Value("%stride", "i64"), Value("%addresses", "ptr")]
    parameters = [context, Value("%site", "ptr"), *programs, *described, lanes, Value("%values", "ptr")]
    with b.function(ACCESS, "i64", parameters, "noinline #0"):
        look, ask, all_ = b.label("look"), b.label("ask"), b.label("all")
        size = b.load("i32", b.offset(context, abi.KERNEL_CONTEXT_STRUCT_SIZE), 4)
        b.branch(b.icmp("ugt", size, integer(abi.KERNEL_CONTEXT_WATCH, "i32")), look, all_)
        b.start(look)
        watch = b.load("ptr", b.offset(context, abi.KERNEL_CONTEXT_WATCH), 8)
        b.branch(b.define("i1", f"icmp eq ptr {watch.ref}, null"), all_, ask)
        b.start(ask)
        function = b.load("ptr", b.offset(watch, abi.KERNEL_WATCH_ACCESS), 8)
        granted = b.define("i64", f"call i64 {function.ref}({', '.join(map(str, [watch, *parameters]))})")
        b.emit(f"ret {granted}")
        b.start(all_)
        b.emit(f"ret {lanes}")


# Sites ----------------------------------------------------------------------------------------------------------------


def _site(env: Environment, op: Op, size: int) -> Value:
    """Its constant, an mtia_site."""
    return _accessing_site(env, op, env.plan_sites[op].kind, size)


def _accessing_site(env: Environment, op: Op, kind: int, size: int) -> Value:
    argument, arguments = env.plan_sites[op].argument, env.module.kernel.body.blocks[0].arguments
    offset, name = -1, ""
    if argument is not None:
        packed, _ = image.lay_out([image.Argument(0, element_size(each.type.element)) for each in arguments])
        offset, name = packed[arguments.index(argument)], argument.name.lstrip("%")
    return _describe(env, op, kind | _NUMBERS.get(op.operands[0].type.pointee, 0), size, offset, name)


_NUMBERS = dict.fromkeys(("f64", "f32", "f16", "f8E5M2"), abi.SITE_FLOAT) | {"bf16": abi.SITE_BFLOAT16}


def _describe(env: Environment, op: Op, kind: int, size: int, offset: int, name: str) -> Value:
    found = env.sites.get((op, kind))
    if found is not None:
        return found
    b = env.b
    file, named = b.string(op.location.file.encode()), b.string(name.encode())
    fields = f"i32 {len(env.sites)}, i32 {kind}, i32 {size}, i32 {op.location.line}, i64 {offset}, {file}, {named}"
    ref = f"@site{len(env.sites)}"
    b.globals.append(f"{ref} = private constant {{ i32, i32, i32, i32, i64, ptr, ptr }} {{ {fields} }}, align 8")
    env.sites[op, kind] = Value(ref, "ptr")
    return env.sites[op, kind]
