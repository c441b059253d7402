"""tl.device_print: lines like `pid (0, 0, 0) idx ( 3) x: 12`, put together in a buffer and handed to the driver's sink.
Their form is what Triton prints on a GPU.

The functions that write numbers are emitted once per image; there is no C library to call.
"""

from __future__ import annotations

from torch_mtia.triton import abi, floats
from torch_mtia.triton.emit.environment import CONTEXT, PROGRAM, Environment, statement
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import is_float_element
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Builder, Phi
from torch_mtia.triton.llvm_value import Value, bits_of, element_of, floating, integer
from torch_mtia.triton.plan.plan import Do

LINE = 1024  # bytes
LONGEST_TEXT = 700  # of a prefix; numbers take at most 30 bytes each
DECIMALS = 6

_LINE, _AT = Value("%line", "ptr"), Value("%at", "i64")
_UNFILLED = "i64 0, i8 32"


@statement("tt.print")
def _print(env: Environment, do: Do) -> None:
    op, nests = do.op, iter(do.nests)
    prefix = op.attributes.get("prefix", "")
    signed = op.attributes.get("isSigned") or [0] * len(op.operands)
    if not op.operands:
        _line(env, prefix)
        return
    for number, (operand, is_signed) in enumerate(zip(op.operands, signed, strict=True)):
        text = prefix + (f"(operand {number}) " if len(op.operands) > 1 else "")
        kind = "x" if op.attributes.get("hex") else "d" if is_signed else "u"
        shape = operand.type.shape
        if shape is None:
            _line(env, text, ((), []), (operand, env.scalar(operand)), kind)
            continue

        def body(strip: Strip, operand: Tensor = operand, text: str = text, kind: str = kind) -> None:
            index = operand.type.shape, [lane.value for lane in strip.index]
            _line(env, text, index, (operand, strip.value(operand)), kind)

        loop_over(env, next(nests), body)


def _line(
    env: Environment,
    text: str,
    place: tuple[tuple[int, ...] | None, list[Value]] | None = None,
    value: tuple[Tensor, Lane] | None = None,
    kind: str = "d",
) -> None:
    """One line. `place`: the tensor's shape and the index in it."""
    b = env.b
    _define_writers(b)
    line = b.alloca(LINE, "i8")
    at = integer(0, "i64")

    def write(part: str) -> None:
        nonlocal at
        at = _write_text(b, line, at, part)

    def write_number(number: Value, base: int = 10, width: int = 0, fill: str = " ", is_signed: bool = False) -> None:
        nonlocal at
        wide = b.sext(number, "i64") if is_signed else b.zext(number, "i64")
        name = "write_signed" if is_signed else "write_unsigned"
        filled = f"i64 {width}, i8 {ord(fill)}"
        at = b.define("i64", f"call i64 @{name}(ptr {line.ref}, {at}, {wide}, i64 {base}, {filled})")

    def write_tuple(numbers: list[Value], widths: list[int]) -> None:
        for number, width in zip(numbers, widths, strict=True):
            write("(" if number is numbers[0] else ", ")
            write_number(number, width=width)
        write(")" if numbers else "()")

    write("pid ")
    write_tuple(list(PROGRAM), [0, 0, 0])
    if place is not None:
        shape, index = place
        write(" idx ")
        write_tuple(index, [len(str(size - 1)) for size in shape or ()])
    write(text[:LONGEST_TEXT])
    if value is not None:
        tensor, lane = value
        element = tensor.type.element
        if is_float_element(element) and kind != "x":
            wide = floats.convert(b, lane.value, element, "f64")
            at = b.define("i64", f"call i64 @write_float(ptr {line.ref}, {at}, {wide})")
        else:
            number = lane.value
            if is_float_element(element):
                number = b.bitcast(number, f"i{bits_of(element_of(number))}")
            if element == "ptr":
                write("0x")
                write_number(number, 16)
            elif kind == "x":
                write("0x")
                write_number(number, 16, width=-(-bits_of(element_of(number)) // 4), fill="0")
            else:
                write_number(number, is_signed=kind == "d" and element != "i1")
    write("\n")
    sink = b.load("ptr", b.offset(CONTEXT, abi.KERNEL_CONTEXT_PRINT_SINK), 8)
    function = b.load("ptr", b.offset(CONTEXT, abi.KERNEL_CONTEXT_PRINT), 8)
    missing = b.define("i1", f"icmp ne ptr {function.ref}, null")
    with b.when(missing):
        b.emit(f"call void {function.ref}(ptr {sink.ref}, ptr {line.ref}, {at})")


def _write_text(b: Builder, line: Value, at: Value, text: str) -> Value:
    raw = text.encode()
    source = b.string(raw)
    return b.define("i64", f"call i64 @write_text(ptr {line.ref}, {at}, ptr {source.ref}, i64 {len(raw)})")


def _define_writers(b: Builder) -> None:
    if "write_text" in b.functions:
        return
    _define_write_text(b)
    _define_write_unsigned(b)
    _define_write_signed(b)
    _define_write_float(b)


def _define_write_text(b: Builder) -> None:
    text, size = Value("%text", "ptr"), Value("%size", "i64")
    with b.function("write_text", "i64", [_LINE, _AT, text, size], "noinline #0"):
        head, body, done, before = b.label("head"), b.label("body"), b.label("done"), b.block
        b.jump(head)
        b.start(head)
        place = Phi(b, "i64")
        place.incoming.append((integer(0, "i64"), before))
        b.branch(b.icmp("slt", place.value, size), body, done)
        b.start(body)
        character = b.load("i8", b.element_address(text, "i8", place.value), 1)
        b.store(character, b.element_address(_LINE, "i8", b.add(_AT, place.value)), 1)
        place.add(b.add(place.value, integer(1, "i64")))
        b.jump(head)
        place.finish()
        b.start(done)
        b.emit(f"ret i64 {b.add(_AT, size).ref}")


def _define_write_unsigned(b: Builder) -> None:
    """At least `width` characters. Digits from the last one, into a buffer of their own that is full of `fill`."""
    number, base = Value("%number", "i64"), Value("%base", "i64")
    width, fill = Value("%width", "i64"), Value("%fill", "i8")
    with b.function("write_unsigned", "i64", [_LINE, _AT, number, base, width, fill], "noinline #0"):
        digits = b.alloca(64, "i8")
        b.store(b.splat(fill, 64), digits, 1)
        head, done, before = b.label("digit"), b.label("done"), b.block
        b.jump(head)
        b.start(head)
        place, rest = Phi(b, "i64"), Phi(b, "i64")
        place.incoming.append((integer(64, "i64"), before))
        rest.incoming.append((number, before))
        following = b.sub(place.value, integer(1, "i64"))
        quotient = b.binary("udiv", rest.value, base)
        digit = b.cast("trunc", b.sub(rest.value, b.mul(quotient, base)), "i8")
        letter = b.icmp("ugt", digit, integer(9, "i8"))
        offset = b.select(letter, integer(ord("a") - 10, "i8"), integer(ord("0"), "i8"))
        b.store(b.add(digit, offset), b.element_address(digits, "i8", following), 1)
        place.add(following)
        rest.add(quotient)
        b.branch(b.icmp("eq", quotient, integer(0, "i64")), done, head)
        place.finish()
        rest.finish()
        b.start(done)
        filled = b.sub(integer(64, "i64"), width)
        first = b.select(b.icmp("slt", filled, following), filled, following)
        start = b.element_address(digits, "i8", first)
        size = b.sub(integer(64, "i64"), first)
        end = b.define("i64", f"call i64 @write_text({_LINE}, {_AT}, {start}, {size})")
        b.emit(f"ret i64 {end.ref}")


def _define_write_signed(b: Builder) -> None:
    number, base = Value("%number", "i64"), Value("%base", "i64")
    width, fill = Value("%width", "i64"), Value("%fill", "i8")
    with b.function("write_signed", "i64", [_LINE, _AT, number, base, width, fill], "noinline #0"):
        negative = b.icmp("slt", number, integer(0, "i64"))
        b.store(integer(ord("-"), "i8"), b.element_address(_LINE, "i8", _AT), 1)
        at = b.add(_AT, b.zext(negative, "i64"))
        size = b.select(negative, b.sub(integer(0, "i64"), number), number)
        end = b.define("i64", f"call i64 @write_unsigned({_LINE}, {at}, {size}, {base}, {width}, {fill})")
        b.emit(f"ret i64 {end.ref}")


def _define_write_float(b: Builder) -> None:
    """Like %f; a number from 1e12 on is divided by ten as often as it takes, and ends in that exponent."""
    number = Value("%number", "double")
    with b.function("write_float", "i64", [_LINE, _AT, number], "noinline #0"):
        special, finite = b.label("special"), b.label("finite")
        size = b.unary_intrinsic("fabs", number)
        bits = b.bitcast(number, "i64")
        negative = b.icmp("slt", bits, integer(0, "i64"))
        b.store(integer(ord("-"), "i8"), b.element_address(_LINE, "i8", _AT), 1)
        is_nan = b.fcmp("uno", number, number)
        signed = b.binary("and", negative, b.binary("xor", is_nan, integer(1, "i1")))
        at = b.add(_AT, b.zext(signed, "i64"))
        b.branch(b.fcmp("olt", size, floating(float("inf"), "double")), finite, special)
        b.start(special)
        nan, infinite = b.string(b"nan"), b.string(b"inf")
        text = b.define("ptr", f"select i1 {is_nan.ref}, ptr {nan.ref}, ptr {infinite.ref}")
        b.emit(f"ret i64 {b.define('i64', f'call i64 @write_text({_LINE}, {at}, {text}, i64 3)').ref}")
        b.start(finite)
        head, scale, scaled, before = b.label("head"), b.label("scale"), b.label("scaled"), b.block
        b.jump(head)
        b.start(head)
        mantissa, exponent = Phi(b, "double"), Phi(b, "i64")
        mantissa.incoming.append((size, before))
        exponent.incoming.append((integer(0, "i64"), before))
        b.branch(b.fcmp("oge", mantissa.value, floating(1e12, "double")), scale, scaled)
        b.start(scale)
        mantissa.add(b.fdiv(mantissa.value, floating(10.0, "double")))
        exponent.add(b.add(exponent.value, integer(1, "i64")))
        b.jump(head)
        mantissa.finish()
        exponent.finish()
        b.start(scaled)
        unit = 10**DECIMALS
        shifted = b.binary("fmul", mantissa.value, floating(float(unit), "double"))
        total = b.cast("fptoui", b.binary("fadd", shifted, floating(0.5, "double")), "i64")
        whole = b.binary("udiv", total, integer(unit, "i64"))
        fraction = b.sub(total, b.mul(whole, integer(unit, "i64")))
        at = b.define("i64", f"call i64 @write_unsigned({_LINE}, {at}, {whole}, i64 10, {_UNFILLED})")
        # A one before the fraction keeps its leading zeros; the point then takes the place of the one.
        point = b.element_address(_LINE, "i8", at)
        marked = b.add(fraction, integer(unit, "i64"))
        at = b.define("i64", f"call i64 @write_unsigned({_LINE}, {at}, {marked}, i64 10, {_UNFILLED})")
        b.store(integer(ord("."), "i8"), point, 1)
        plain, power = b.label("plain"), b.label("power")
        b.branch(b.icmp("eq", exponent.value, integer(0, "i64")), plain, power)
        b.start(plain)
        b.emit(f"ret i64 {at.ref}")
        b.start(power)
        at = _write_text(b, _LINE, at, "e+")
        at = b.define("i64", f"call i64 @write_unsigned({_LINE}, {at}, {exponent.value}, i64 10, {_UNFILLED})")
        b.emit(f"ret i64 {at.ref}")
