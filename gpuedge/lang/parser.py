"""Whole kernel texts: declarations, functions, and the rules that span them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from gpuedge.core.kernel import Number, ScalarType
from gpuedge.lang import tree as t
from gpuedge.lang.measure import INT_MAX, INT_MIN
from gpuedge.lang.statements import StatementParser
from gpuedge.lang.tokens import Tokens

_SIZE_NAMES = ("LX", "LY", "LZ")
MAX_OUTPUTS = 4
"""Out tensors of a map kernel: the draw buffers that OpenGL ES 3.0 guarantees (table 6.33)."""


class KernelParser(StatementParser):
    """Parses one text; `consts` replace the values of its ``const int``."""

    def __init__(self, tokens: Tokens, consts: Mapping[str, int]) -> None:
        super().__init__(tokens)
        self.consts = dict(consts)
        self.has_main = False
        self.emitted = set()
        self.has_size = False
        self.sizes: dict[str, int] = {}
        self.tensor_at: dict[str, int] = {}

    def parse(self) -> t.Kernel:
        """Parse the whole text."""
        kernel = self.kernel
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
        while self.tokens.kinds[self.at] != "end":
            text = self.texts[self.at]
            if self.has_main:
                self.fail("main is the last declaration of a kernel")
            if text in parts:
                parts[text]()
            elif text in t.BASE or text == "void":
                self._function()
            else:
                self._unexpected("expected a declaration")
        self._check_whole()
        own = [spec for spec in kernel.specs if spec.spec_id > 2]
        first = [t.Spec(n, "int", i, self.sizes.get(n, 1)) for i, n in enumerate(_SIZE_NAMES)]
        declared = {spec.name: spec for spec in kernel.specs if spec.spec_id <= 2}
        kernel.specs = [declared.get(spec.name, spec) for spec in first] + own
        if kernel.form == "map":
            x, y, z = (t.SpecRef("int", spec) for spec in kernel.specs[:3])
            kernel.local_size = (x, y, z)
        return kernel

    def _kernel_line(self) -> None:
        self.expect("kernel", "as the first word")
        form = self.texts[self.at]
        if form not in ("map", "group"):
            self._unexpected("expected 'map' or 'group'")
        self.kernel.form = cast(Literal["map", "group"], form)
        self.at += 1
        self.kernel.name = self.new_name("kernel")
        self.expect(";", "after the kernel's name")

    def _check_whole(self) -> None:
        kernel = self.kernel
        if not self.has_main:
            self.fail("the kernel has no main")
        if not any(tensor.access == "write" for tensor in kernel.tensors):
            self.fail("the kernel has no out tensor")
        for tensor in kernel.tensors:
            if tensor in kernel.outs[1:] and tensor.name not in self.emitted:
                self.fail(
                    f"out tensor {tensor.name!r} is never written",
                    f"main writes it by emit({tensor.name}, value);",
                    at=self.tensor_at[tensor.name],
                )
            if not tensor.used and not (kernel.form == "map" and tensor.access == "write"):
                self.fail(
                    f"tensor {tensor.name!r} is never used",
                    "remove it: some APIs drop it from the interface and bindings would shift",
                    at=self.tensor_at[tensor.name],
                )
        if kernel.form == "group" and not self.has_size:
            self.fail("a group kernel needs local_size(X, Y, Z);")
        for name in self.consts:
            if not isinstance(self.names.get(name), t.Literal):
                self.fail(f"there is no const int {name!r} to give a value to")

    # --- declarations -------------------------------------------------------------------------
    def _tensor(self) -> None:
        is_out = self.texts[self.at] == "out"
        at = self.at
        self.at += 1
        self.expect("tensor", "after 'in' or 'out'")
        kernel = self.kernel
        outs = sum(tensor.access == "write" for tensor in kernel.tensors)
        if is_out and outs and kernel.form == "group":
            self.fail("a group kernel has one out tensor", at=at)
        if is_out and outs == MAX_OUTPUTS:
            self.fail(f"a kernel has at most {MAX_OUTPUTS} out tensors", at=at)
        self.tensor_at[self.texts[self.at]] = self.at
        name = self.new_name("tensor")
        made = t.Tensor(name, "write" if is_out else "read", len(kernel.tensors))
        kernel.tensors.append(made)
        self.names[name] = made
        self.expect(";", "after the name")

    def _const(self) -> None:
        self.at += 1
        self.expect("int", "after 'const'")
        name = self.new_name("const")
        self.expect("=", "after the name")
        at = self.at
        value = self._const_int("a const")
        given = self.consts.get(name, value)
        if isinstance(given, bool) or not isinstance(given, int):
            self.fail(f"const {name!r} was given the value {given!r}, not an int", at=at)
        if not INT_MIN <= given <= INT_MAX:
            self.fail(f"const {name!r} was given {given}, not a 32-bit int", at=at)
        self.names[name] = t.Literal("int", given)
        self.expect(";", "after the value")

    def _const_int(self, what: str) -> int:
        at = self.at
        value = self.whole_expression()
        if value.type != "int":
            self.fail(f"{what} is int, not {value.type}", at=at)
        return int(self.constant(value, what, at).value)

    def _spec(self) -> None:
        self.at += 1
        kind = self.texts[self.at]
        if kind not in ("int", "float", "bool"):
            self._unexpected("expected int, float or bool after 'spec'")
        self.at += 1
        name = self.texts[self.at]
        is_size = self.kernel.form == "group" and name in _SIZE_NAMES and name not in self.names
        if is_size:
            self.at += 1
            if kind != "int":
                self.fail(f"{name} is an int", at=self.at - 2)
        else:
            name = self.new_name("spec")
        self.expect("=", "after the name")
        default = self._spec_default(kind)
        if is_size:
            if default < 1:
                self.fail(f"{name} is at least 1", at=self.at - 1)
            spec_id = _SIZE_NAMES.index(name)
            self.sizes[name] = int(default)
        else:
            spec_id = 3 + sum(spec.spec_id > 2 for spec in self.kernel.specs)
        made = t.Spec(name, cast(ScalarType, kind), spec_id, default)
        self.kernel.specs.append(made)
        self.names[name] = made
        self.expect(";", "after the default")

    def _spec_default(self, kind: str) -> Number:
        at = self.at
        value = self.whole_expression()
        if value.type != kind:
            self._wrong_value(kind, value.type, at)
        return self.constant(value, "the default of a spec", at).value

    def _param(self) -> None:
        self.at += 1
        kind = self.texts[self.at]
        if kind not in ("int", "float"):
            self._unexpected("expected int or float after 'param'")
        self.at += 1
        name = self.new_name("param")
        if self.texts[self.at] == "=":
            self.fail("a param has no default", "it is given with each dispatch; see spec")
        made = t.Param(name, cast(Literal["int", "float"], kind))
        self.kernel.params.append(made)
        self.names[name] = made
        self.expect(";", "after the name")

    def _only_group(self) -> None:
        if self.kernel.form == "map":
            self.fail(f"{self.texts[self.at]} is for group kernels")

    def _shared(self) -> None:
        self._only_group()
        self.at += 1
        kind = self.texts[self.at]
        if kind not in t.BASE or kind == "bool":
            self._unexpected("expected a number type after 'shared'")
        self.at += 1
        name = self.new_name("shared array")
        self.expect("[", "after the name")
        at = self.at
        size = self.whole_expression()
        if size.type != "int" or not self._is_size(size):
            self.fail("the size of a shared array is + - * / % of const and spec ints", at=at)
        if isinstance(size, t.Literal) and size.value < 1:
            self.fail(f"a shared array of {size.value} elements", at=at)
        self.expect("]", "to close '['")
        self.expect(";", "after the declaration")
        made = t.Shared(name, kind, size)
        self.kernel.shared.append(made)
        self.names[name] = made

    def _is_size(self, expr: t.Expr) -> bool:
        """Return whether every API can compute `expr` where it declares an array."""
        if isinstance(expr, t.Binary):
            return self._is_size(expr.left) and self._is_size(expr.right)
        return isinstance(expr, t.Literal | t.SpecRef) and expr.type == "int"

    def _local_size(self) -> None:
        self._only_group()
        if self.has_size:
            self.fail("local_size is given twice")
        self.has_size = True
        self.at += 1
        self.expect("(", "after 'local_size'")
        sizes: list[t.Expr] = []
        for axis, name in enumerate(_SIZE_NAMES):
            at = self.at
            size = self.whole_expression()
            if isinstance(size, t.Literal) and size.type == "int" and size.value >= 1:
                self.sizes[name] = int(size.value)
                if name in self.names:
                    self.fail(f"{name} is declared, so it is the size here", at=at)
            elif not (isinstance(size, t.SpecRef) and size.spec.name == name):
                hint = f"declare spec int {name} = 8; and write {name} here"
                self.fail(f"size {axis + 1} is a positive constant or {name}", hint, at=at)
            sizes.append(size)
            self.expect("," if axis < 2 else ")", "after the size")
        self.expect(";", "after local_size(...)")
        self.kernel.local_size = (sizes[0], sizes[1], sizes[2])

    # --- functions ----------------------------------------------------------------------------
    def _function(self) -> None:
        kind = self.texts[self.at]
        self.at += 1
        at = self.at
        self.in_main = self.accept("main")
        name = "main" if self.in_main else self.new_name("function")
        if kind == "void" and not self.in_main:
            self.fail("a function returns a value", "it has no side effects otherwise", at=at - 1)
        globals_ = dict(self.names)
        args = self._function_args()
        if self.in_main:
            self._check_main(kind, args, at)
            self.position_of_main = args[0] if args else self.local("", "ivec4")
        self.expect("{", "to begin the function")
        body: list[t.Stmt] = []
        ends = ("return", "}")
        while self.texts[self.at] not in ends:
            self.statement(body)
        result = self._return(kind, name)
        self.names = globals_
        made = t.Function(name, kind, args, body, result)
        if self.in_main:
            self.kernel.main, self.has_main = made, True
        else:
            self.kernel.functions.append(made)
            self.names[name] = made
            self._check_epilogue(made, at)

    def _check_epilogue(self, function: t.Function, at: int) -> None:
        kinds = [function.type, *(arg.type for arg in function.args)]
        if function.name == "epilogue" and kinds != ["vec4", "vec4", "ivec4"]:
            self.fail("the epilogue is vec4 epilogue(vec4 v, ivec4 p)", at=at)

    def _function_args(self) -> list[t.Local]:
        self.expect("(", "after the function's name")
        args: list[t.Local] = []
        if self.accept(")"):
            return args
        while True:
            kind = self.texts[self.at]
            if kind not in t.BASE:
                self._unexpected("expected the type of a parameter")
            self.at += 1
            name = self.new_name("parameter")
            args.append(self.local(name, kind, read_only="a parameter"))
            if self.accept(")"):
                return args
            self.expect(",", "or ')' after a parameter")

    def _check_main(self, kind: str, args: list[t.Local], at: int) -> None:
        if self.kernel.form == "map" and (kind != "vec4" or [a.type for a in args] != ["ivec4"]):
            self.fail("the main of a map kernel is vec4 main(ivec4 p)", at=at)
        if self.kernel.form == "group" and (kind != "void" or args):
            self.fail("the main of a group kernel is void main()", at=at)

    def _return(self, kind: str, name: str) -> t.Expr | None:
        if kind == "void":
            if self.texts[self.at] == "return":
                self.fail("void main() has no return", "there is no early exit: use if / else")
            self.at += 1
            return None
        if not self.accept("return"):
            self.fail(f"{name} ends without return")
        at = self.at
        result = self.whole_expression()
        if result.type != kind:
            self._wrong_value(kind, result.type, at)
        self.expect(";", "after the value")
        self.expect("}", "right after the one return")
        return result


def load(
    text: str,
    *,
    filename: str,
    consts: Mapping[str, int] | None = None,
    epilogue: str | None = None,
    epilogue_name: str = "epilogue",
) -> t.Kernel:
    """Parse, type and legalise a kernel text.

    Parameters
    ----------
    text : str
        The kernel; see docs/kernel-language.md.
    filename : str
        What errors call the text.
    consts : mapping, optional
        Values that replace those of ``const int`` declarations.
    epilogue : str, optional
        Text that takes the place of the line ``//EPILOGUE``; by default one that changes nothing.
    epilogue_name : str
        What errors call the epilogue.

    Raises
    ------
    KernelSyntaxError (GE-301)
        The first thing wrong, with line, column and caret.
    """
    return KernelParser(Tokens(text, filename, epilogue, epilogue_name), consts or {}).parse()
