"""Whole kernel texts: declarations, functions, and the rules that span them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from gpuedge.core.kernel import ScalarType
from gpuedge.lang import tree as t
from gpuedge.lang.bodies import BodyParser
from gpuedge.lang.evaluate import INT_MAX, INT_MIN
from gpuedge.lang.tokens import FULL, Cursor

_SIZE_NAMES = ("LX", "LY", "LZ")


class KernelParser:
    """Parses one text; `consts` replace the values of its ``const int``."""

    def __init__(self, cursor: Cursor, consts: Mapping[str, int]) -> None:
        self.cursor = cursor
        self.texts = cursor.texts
        self.fail = cursor.fail
        self.consts = dict(consts)
        self.kernel = t.Kernel()
        self.inside = BodyParser(cursor, self.kernel)
        self.has_main = False
        self.has_size = False
        self.sizes: dict[str, int] = {}
        self.tensor_at: dict[str, int] = {}

    def parse(self) -> t.Kernel:
        """Parse the whole text."""
        self._kernel_line()
        parts = {
            "in": self._tensor,
            "out": self._tensor,
            "const": self._const,
            "spec": self._spec,
            "param": self._param,
            "shared": self._shared,
            "local_size": self._local_size,
        }
        while text := self.texts[self.cursor.at]:
            if self.has_main:
                self.fail("main is the last declaration of a kernel")
            if text in parts:
                parts[text]()
            elif text in t.BASE or text == "void":
                self._function()
            else:
                self.cursor.unexpected("expected a declaration")
        self._check_whole()
        self._finish_specs()
        return self.kernel

    def _kernel_line(self) -> None:
        cursor = self.cursor
        cursor.expect("kernel", "as the first word")
        form = self.texts[cursor.at]
        if form not in ("map", "group"):
            cursor.unexpected("expected 'map' or 'group'")
        self.kernel.form = cast(Literal["map", "group"], form)
        cursor.at += 1
        self.kernel.name = self._new_name("kernel")
        cursor.expect(";", "after the kernel's name")

    def _new_name(self, what: str) -> str:
        return self.cursor.new_name(what, self.inside.names)

    def _finish_specs(self) -> None:
        """Put the sizes of a workgroup first, also those that the text does not declare."""
        kernel = self.kernel
        own = [spec for spec in kernel.specs if spec.spec_id > 2]
        declared = {spec.name: spec for spec in kernel.specs if spec.spec_id <= 2}
        first = [
            declared.get(name) or t.Spec(name, "int", i, self.sizes.get(name, 1))
            for i, name in enumerate(_SIZE_NAMES)
        ]
        kernel.specs = first + own
        if kernel.form == "map":
            kernel.local_size = (first[0], first[1], first[2])

    def _check_whole(self) -> None:
        kernel = self.kernel
        if not self.has_main:
            self.fail("the kernel has no main")
        if not any(tensor.access == "write" for tensor in kernel.tensors):
            self.fail("the kernel has no out tensor")
        for tensor in kernel.tensors:
            if not tensor.used and not (kernel.form == "map" and tensor.access == "write"):
                # Some APIs would drop it from the interface, and bindings would shift.
                at = self.tensor_at[tensor.name]
                self.fail(f"tensor {tensor.name!r} is never used", at=at)
        if kernel.form == "group" and not self.has_size:
            self.fail("a group kernel needs local_size(X, Y, Z);")
        for name in self.consts:
            if not isinstance(self.inside.names.get(name), t.Literal):
                self.fail(f"there is no const int {name!r} to give a value to")

    # --- declarations -------------------------------------------------------------------------
    def _tensor(self) -> None:
        cursor, kernel = self.cursor, self.kernel
        at = cursor.at
        is_out = self.texts[at] == "out"
        cursor.at += 1
        cursor.expect("tensor", "after 'in' or 'out'")
        if is_out and any(other.access == "write" for other in kernel.tensors):
            self.fail("a kernel has one out tensor", at=at)
        self.tensor_at[self.texts[cursor.at]] = cursor.at
        name = self._new_name("tensor")
        tensor = t.Tensor(name, "write" if is_out else "read", len(kernel.tensors))
        kernel.tensors.append(tensor)
        self.inside.names[name] = tensor
        cursor.expect(";", "after the name")

    def _const(self) -> None:
        cursor = self.cursor
        cursor.at += 1
        cursor.expect("int", "after 'const'")
        name = self._new_name("const")
        cursor.expect("=", "after the name")
        at = cursor.at
        value = self.inside.whole_expression()
        if value.type != "int":
            self.fail(f"a const is int, not {value.type}", at=at)
        own = int(self.inside.rules.constant(value, "a const", at).value)
        given = self.consts.get(name, own)
        if isinstance(given, bool) or not isinstance(given, int):
            self.fail(f"const {name!r} was given the value {given!r}, not an int", at=at)
        if not INT_MIN <= given <= INT_MAX:
            self.fail(f"const {name!r} was given {given}, not a 32-bit int", at=at)
        self.inside.names[name] = t.Literal("int", given)
        cursor.expect(";", "after the value")

    def _spec(self) -> None:
        cursor, kernel = self.cursor, self.kernel
        cursor.at += 1
        kind = self.texts[cursor.at]
        if kind not in ("int", "float", "bool"):
            cursor.unexpected("expected int, float or bool after 'spec'")
        cursor.at += 1
        name = self.texts[cursor.at]
        is_size = kernel.form == "group" and name in _SIZE_NAMES and name not in self.inside.names
        if is_size:
            cursor.at += 1
            if kind != "int":
                self.fail(f"{name} is an int", at=cursor.at - 2)
        else:
            name = self._new_name("spec")
        cursor.expect("=", "after the name")
        at = cursor.at
        value = self.inside.typed(kind)
        default = self.inside.rules.constant(value, "the default of a spec", at).value
        spec_id = 3 + sum(other.spec_id > 2 for other in kernel.specs)
        if is_size:
            if default < 1:
                self.fail(f"{name} is at least 1", at=cursor.at - 1)
            spec_id = _SIZE_NAMES.index(name)
            self.sizes[name] = int(default)
        spec = t.Spec(name, cast(ScalarType, kind), spec_id, default)
        kernel.specs.append(spec)
        self.inside.names[name] = spec
        cursor.expect(";", "after the default")

    def _param(self) -> None:
        cursor = self.cursor
        cursor.at += 1
        kind = self.texts[cursor.at]
        if kind not in ("int", "float"):
            cursor.unexpected("expected int or float after 'param'")
        cursor.at += 1
        name = self._new_name("param")
        param = t.Param(name, cast(Literal["int", "float"], kind))
        self.kernel.params.append(param)
        self.inside.names[name] = param
        cursor.expect(";", "after the name")

    def _only_group(self) -> None:
        if self.kernel.form == "map":
            self.fail(f"{self.texts[self.cursor.at]} is for group kernels")

    def _shared(self) -> None:
        self._only_group()
        cursor = self.cursor
        cursor.at += 1
        kind = self.texts[cursor.at]
        if kind not in t.BASE or kind == "bool":
            cursor.unexpected("expected a number type after 'shared'")
        cursor.at += 1
        name = self._new_name("shared array")
        cursor.expect("[", "after the name")
        at = cursor.at
        size = self.inside.whole_expression()
        if size.type != "int" or not _is_size(size):
            self.fail("the size of a shared array is + - * / % of const and spec ints", at=at)
        if isinstance(size, t.Literal) and size.value < 1:
            self.fail(f"a shared array of {size.value} elements", at=at)
        cursor.expect("]", "to close '['")
        cursor.expect(";", "after the declaration")
        array = t.Shared(name, kind, size)
        self.kernel.shared.append(array)
        self.inside.names[name] = array

    def _local_size(self) -> None:
        self._only_group()
        if self.has_size:
            self.fail("local_size is given twice")
        self.has_size = True
        self.cursor.at += 1
        self.cursor.expect("(", "after 'local_size'")
        sizes: list[t.Expr] = []
        for axis, name in enumerate(_SIZE_NAMES):
            at = self.cursor.at
            size = self.inside.whole_expression()
            if isinstance(size, t.Literal) and size.type == "int" and size.value >= 1:
                self.sizes[name] = int(size.value)
                if name in self.inside.names:
                    self.fail(f"{name} is declared, so it is the size here", at=at)
            elif not (isinstance(size, t.Spec) and size.name == name):
                self.fail(f"size {axis + 1} is a positive constant or {name}", at=at)
            sizes.append(size)
            self.cursor.expect("," if axis < 2 else ")", "after the size")
        self.cursor.expect(";", "after local_size(...)")
        self.kernel.local_size = (sizes[0], sizes[1], sizes[2])

    # --- functions ----------------------------------------------------------------------------
    def _function(self) -> None:
        cursor, inside = self.cursor, self.inside
        kind = self.texts[cursor.at]
        cursor.at += 1
        at = cursor.at
        inside.in_main = cursor.accept("main")
        name = "main" if inside.in_main else self._new_name("function")
        if kind == "void" and not inside.in_main:
            self.fail("a function returns a value", at=at - 1)
        outer = dict(inside.names)
        args = self._function_args()
        if inside.in_main:
            self._check_main(kind, args, at)
        cursor.expect("{", "to begin the function")
        body: list[t.Stmt] = []
        while self.texts[cursor.at] not in ("return", "}"):
            inside.statement()(body)
        function = t.Function(name, kind, args, body, self._return(kind, name))
        inside.names = outer
        if inside.in_main:
            self.kernel.main, self.has_main = function, True
        else:
            self.kernel.functions.append(function)
            inside.names[name] = function

    def _function_args(self) -> list[t.Local]:
        cursor = self.cursor
        cursor.expect("(", "after the function's name")
        args: list[t.Local] = []
        if cursor.accept(")"):
            return args
        while True:
            kind = self.texts[cursor.at]
            if kind not in t.BASE:
                cursor.unexpected("expected the type of a parameter")
            cursor.at += 1
            name = self._new_name("parameter")
            args.append(self.inside.local(name, kind, read_only="a parameter"))
            if cursor.accept(")"):
                return args
            cursor.expect(",", "or ')' after a parameter")

    def _check_main(self, kind: str, args: list[t.Local], at: int) -> None:
        kinds = [kind, *(arg.type for arg in args)]
        if self.kernel.form == "group":
            if kinds != ["void"]:
                self.fail("the main of a group kernel is void main()", at=at)
        elif kinds != ["vec4", "ivec4"]:
            self.fail("the main of a map kernel is vec4 main(ivec4 p)", at=at)

    def _return(self, kind: str, name: str) -> t.Expr | None:
        cursor = self.cursor
        if kind == "void":
            cursor.expect("}", "at the end of main")
            return None
        if not cursor.accept("return"):
            self.fail(f"{name} ends without return")
        result = self.inside.typed(kind)
        cursor.expect(";", "after the value")
        cursor.expect("}", "right after the one return")
        return result


def _is_size(expr: t.Expr) -> bool:
    """Return whether every API can compute `expr` where it declares an array."""
    if isinstance(expr, t.Op):
        return expr.name in ("+", "-", "*", "/", "%") and all(map(_is_size, expr.args))
    return isinstance(expr, (t.Literal, t.Spec)) and expr.type == "int"


def load(
    text: str,
    *,
    filename: str,
    consts: Mapping[str, int] | None = None,
    epilogue: str | None = None,
    is_half: bool = False,
) -> t.Kernel:
    """Parse, type and legalise a kernel text.

    Parameters
    ----------
    text : str
        The kernel; see shaders/README.md.
    filename : str
        What errors call the text.
    consts : mapping, optional
        Values that replace those of ``const int`` declarations.
    epilogue : str, optional
        Text that takes the place of the line ``//EPILOGUE``; by default one that changes nothing.
    is_half : bool
        Whether ``half`` and ``hvec4`` are float16. By default they are other words for ``float``
        and ``vec4``, so that one text serves both.

    Raises
    ------
    KernelSyntaxError (GE-301)
        The first thing wrong, with line, column and caret.
    """
    cursor = Cursor(text, filename, epilogue)
    if not is_half:
        cursor.widen()
    kernel = KernelParser(cursor, consts or {}).parse()
    kernel.is_half = is_half and not FULL.keys().isdisjoint(cursor.texts)
    return kernel
