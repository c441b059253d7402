"""Runs a function of generated code as one native call.

Inductor writes Python functions whose statements allocate, launch and free. `prepare` reads the source of one, and what
it returns carries the same statements out in the same order: those of the forms below natively
(csrc/python/prepared_call.cpp), with tensors that become Python objects only where Python sees them; all others as
Python functions of their own.

    a, b = args; args.clear()                              assert_size_stride(a, (16, ), (1, ), 'input')
    a = copy_if_misaligned(a)                              c = empty_strided_mtia((16, ), (1, ), torch.float32)
    raw_stream0 = get_raw_stream(0)                        kernel.run(a, c, 16, stream=raw_stream0)
    d = reinterpret_tensor(c, (4, 4), (4, 1), 0)           del a
    d = c                                                  with DeviceGuard(0): ...
    return (c, d, )
"""

from __future__ import annotations

import ast
import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from torch_mtia import _C, environment

Operation = tuple[Any, ...]

guards: Any = torch._C._dynamo.guards


def prepare_runner(runner: Any) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Returns the main function of a module of generated code, and those that it is divided into, prepared."""
    runner.partitions = [prepare(partition) for partition in runner.partitions]
    runner.call = prepare(runner.call)
    return runner.call  # type: ignore[no-any-return]


def prepare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what does the same as a function of generated code, or a method, quicker; the function itself if it does
    not run straight from its first statement to its last, or if errors are to name its lines."""
    if environment.settings().launch_blocking:
        return function
    if isinstance(function, MethodType):
        prepared = prepare(function.__func__)
        return function if prepared is function.__func__ else MethodType(prepared, function.__self__)
    try:
        with _collector_paused():
            return _Preparation(function).result()  # type: ignore[arg-type]
    except _CannotBePrepared:
        return function


class _CannotBePrepared(Exception):
    pass


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """A syntax tree is some thousand objects that die at once; while they live, the collector would search all that a
    process has compiled, which takes longer than to prepare it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Preparation:
    """Translates one function.

    Attributes:
        names: the function's variables, by register.
        temporaries: registers of values that have no name, freed after the statement that reads them.
        parts: definitions of the functions for statements of other forms, compiled together at the end.
    """

    def __init__(self, function: FunctionType) -> None:
        self.scope = function.__globals__
        self.file = function.__code__.co_filename
        code = function.__code__
        definition = _definition(code)
        _refuse_other_parameters(definition.args)
        self.names = {name: number for number, name in enumerate(code.co_varnames)}
        self.count = len(self.names)
        self.num_parameters = code.co_argcount
        self.operations: list[Operation] = []
        self.temporaries: list[int] = []
        self.parts: list[ast.stmt] = []
        *body, last = definition.body
        for statement in body:
            self.translate(statement)
        if not (isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple)):
            raise _CannotBePrepared
        self.results = [self.operand(value) for value in last.value.elts]

    def result(self) -> _C.PreparedCall:
        functions: dict[str, Any] = {}
        exec(compile(ast.Module(self.parts, []), self.file, "exec"), self.scope, functions)
        operations = [
            ("call", functions[operation[1]], *operation[2:]) if operation[0] == "call" else operation
            for operation in self.operations
        ]
        return _C.PreparedCall(self.count, self.num_parameters, tuple(operations), tuple(self.results))

    # Statements -------------------------------------------------------------------------------------------------------

    def translate(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Pass():
                pass
            case ast.Delete(targets):
                for target in targets:
                    self.free(self.names[_name(target)])
            case ast.With([ast.withitem(ast.Call(guard, [ast.Constant(int(index))]), None)], body) if (
                ast.unparse(guard) == "DeviceGuard"
                and "DeviceGuard" not in self.names
                and not any(isinstance(inner, ast.With) for inner in body)
            ):
                self.operations.append(("enter", index))
                for inner in body:
                    self.translate(inner)
                self.operations.append(("exit",))
            case ast.Assign([target], value):
                self.translate_assignment(statement, target, value)
            case ast.Expr(ast.Call() as call):
                self.translate_call(statement, call)
            case ast.Assign() | ast.Expr() | ast.Assert() | ast.AugAssign() | ast.AnnAssign(value=ast.expr()):
                self.translate_to_python(statement)
            case _:
                raise _CannotBePrepared
        self.operations += [("free", register) for register in self.temporaries]
        self.temporaries.clear()

    def free(self, register: int) -> None:
        match self.operations:
            case [*_, ("copy", to, from_)] if from_ == register != to:  # `d = c; del c`
                self.operations[-1] = ("move", to, from_)
            case _:
                self.operations.append(("free", register))

    def translate_assignment(self, statement: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Tuple(elements), ast.Name(name) if name in self.names and all(
                isinstance(element, ast.Name) for element in elements
            ):
                registers = [self.names[_name(element)] for element in elements]
                self.operations.append(("unpack", registers, self.names[name]))
            case ast.Name(to), ast.Name(name) if name in self.names:
                self.operations.append(("copy", self.names[to], self.names[name]))
            case ast.Name(to), ast.Call(ast.Name(called), arguments, []):
                if not self.translate_making(self.names[to], self.known(called), arguments):
                    self.translate_to_python(statement)
            case _:
                self.translate_to_python(statement)

    def translate_making(self, to: int, function: object, arguments: list[ast.expr]) -> bool:
        """Whether `to = function(arguments)` has one of the forms; if so, it is translated."""
        match function, arguments:
            case guards.copy_if_misaligned, [ast.Name(name)] if self.names.get(name) == to:
                self.operations.append(("align", function, to))
            case _C._empty_strided, [ast.Tuple(sizes), ast.Tuple(strides), dtype]:
                value = None if self.variables(dtype)[0] else eval(ast.unparse(dtype), self.scope)
                if not isinstance(value, torch.dtype):
                    return False
                self.operations.append(("allocate", to, self.operands(sizes), self.operands(strides), value))
            case guards._reinterpret_tensor, [ast.Name(name), ast.Tuple(sizes), ast.Tuple(strides), offset] if (
                name in self.names
            ):
                layout = (self.operands(sizes), self.operands(strides), self.operand(offset))
                self.operations.append(("view", to, self.names[name], *layout))
            case _C._current_raw_stream, [ast.Constant(int(index))]:
                self.operations.append(("stream", to, index))
            case _:
                return False
        return True

    def translate_call(self, statement: ast.stmt, call: ast.Call) -> None:
        match call:
            case ast.Call(ast.Attribute(ast.Name(name), "clear"), [], []) if name in self.names:
                self.operations.append(("clear", self.names[name]))
            case ast.Call(
                ast.Name(called), [ast.Name(name), ast.Tuple(sizes), ast.Tuple(strides), ast.Constant(str(what))], []
            ) if name in self.names and self.known(called) is guards.assert_size_stride:
                layout = (self.operands(sizes), self.operands(strides))
                self.operations.append(("check", guards.assert_size_stride, self.names[name], *layout, what))
            case ast.Call(
                ast.Attribute(ast.Name(called), "run"), arguments, [ast.keyword("stream", ast.Name(stream))]
            ) if stream in self.names and isinstance(self.known(called), CachingAutotuner):
                operands = self.operands(arguments)
                self.operations.append(("launch", self.scope[called], operands, self.names[stream]))
            case _:
                self.translate_to_python(statement)

    def translate_to_python(self, statement: ast.stmt) -> None:
        read, written = self.variables(statement)
        if isinstance(statement, ast.AugAssign):
            read |= written
        place = _place(statement)
        values: list[ast.expr] = [ast.Name(name, ast.Load(), **place) for name in written]
        returned = ast.Return(values[0] if len(values) == 1 else ast.Tuple(values, ast.Load(), **place), **place)
        self.call_python(read, [statement, returned], list(written.values()), place)

    def call_python(self, read: dict[str, int], body: list[ast.stmt], to: list[int], place: dict[str, Any]) -> None:
        """Has `body` executed, as the body of a function of the variables that it reads."""
        name = f"part_{len(self.parts)}"
        arguments = ast.arguments([], [ast.arg(name, **place) for name in read], None, [], [], None, [])
        self.parts.append(ast.FunctionDef(name, arguments, body, [], **place))
        self.operations.append(("call", name, [(register,) for register in read.values()], to))

    # What they read ---------------------------------------------------------------------------------------------------

    def operands(self, values: list[ast.expr]) -> list[Any]:
        return [self.operand(value) for value in values]

    def operand(self, value: ast.expr) -> Any:
        """Returns a register, as a tuple of its number, or a constant. What is more than that goes to a register
        first."""
        match value:
            case ast.Constant(constant):
                return constant
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as constant)):
                return -constant
            case ast.Name(name) if name in self.names:
                return (self.names[name],)
            case ast.Starred():
                raise _CannotBePrepared
        register = self.count
        self.count += 1
        self.temporaries.append(register)
        match value:
            case ast.Call(ast.Name(called), arguments, []) if self.translate_making(
                register, self.known(called), arguments
            ):
                pass
            case _:
                place = _place(value)
                self.call_python(self.variables(value)[0], [ast.Return(value, **place)], [register], place)
        return (register,)

    def known(self, name: str) -> Any:
        """Returns what a name stands for that is none of the function's variables."""
        return None if name in self.names else self.scope.get(name)

    def variables(self, node: ast.AST) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the function's variables that a statement or an expression reads, and those that it writes."""
        read: dict[str, int] = {}
        written: dict[str, int] = {}
        for part in ast.walk(node):
            match part:
                case ast.Name(name, context) if name in self.names:
                    (read if isinstance(context, ast.Load) else written)[name] = self.names[name]
                case ast.Lambda() | ast.comprehension() | ast.NamedExpr():
                    raise _CannotBePrepared  # whose variables are others
        return read, written


def _definition(code: CodeType) -> ast.FunctionDef:
    """Returns the function's source, with the lines that it has in its file."""
    try:
        module = ast.parse(Path(code.co_filename).read_bytes())
    except (OSError, SyntaxError) as error:
        raise _CannotBePrepared from error
    classes = [node.body for node in module.body if isinstance(node, ast.ClassDef)]
    for node in itertools.chain(module.body, *classes):
        if isinstance(node, ast.FunctionDef) and (node.name, node.lineno) == (code.co_name, code.co_firstlineno):
            return node
    raise _CannotBePrepared


def _refuse_other_parameters(arguments: ast.arguments) -> None:
    others = (arguments.posonlyargs, arguments.vararg, arguments.kwonlyargs, arguments.kwarg, arguments.defaults)
    if any(others):
        raise _CannotBePrepared


def _place(node: ast.stmt | ast.expr) -> dict[str, Any]:
    """Returns where it stands in the file, for nodes that are made in its place."""
    return {place: getattr(node, place) for place in ("lineno", "col_offset", "end_lineno", "end_col_offset")}


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    raise _CannotBePrepared
