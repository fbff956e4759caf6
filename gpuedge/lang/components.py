"""A map kernel for one number of its texel, where a fragment stores no more than that.

In OpenGL ES 2.0 without float textures a texel of four numbers takes four physical texels, each of
which is a fragment. `one_component` writes the main of a map kernel for one number: what is
computed component by component, loads included, is computed for that component alone. What is
needed whole, such as the inputs of a convolution, stays whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from gpuedge.lang import tree as t

_WHOLE: Final = "vec4"
_OPERATORS: Final = frozenset(("vector", "splat", "cast"))
"""What does not go component by component, or is looked at by itself."""


@dataclass(slots=True)
class OneComponent:
    """A kernel for one component: functions, main, its result, and the local that says which."""

    component: t.Local
    functions: list[t.Function]
    body: list[t.Stmt]
    value: t.Expr


def one_component(kernel: t.Kernel, uid: int) -> OneComponent:
    """Return a map kernel for one component of its texel; `uid` is above those of its locals."""
    component = t.Local("component", "int", uid)
    components = _Components(component)
    main = components.function(kernel.main)
    known = {function.name: function for function in kernel.functions}
    functions = [f for name in known for f in (known[name], components.functions.get(name)) if f]
    return OneComponent(component, functions, main.body, main.value)


@dataclass(slots=True)
class _Components:
    """Functions made so far, by the name of what they were; for `component` of the texel."""

    component: t.Local
    functions: dict[str, t.Function] = field(default_factory=dict)

    def function(self, function: t.Function) -> t.Function:
        """Return a function of a vec4 as one of its component."""
        if function.name not in self.functions:
            rewritten = _OneFunction(self).function(function)
            if function.name == "main":
                return rewritten
            self.functions[function.name] = rewritten
        return self.functions[function.name]


class _OneFunction:
    """The body of one function; `whole` are the numbers of locals that are needed whole."""

    def __init__(self, components: _Components) -> None:
        self._components = components
        self._whole: set[int] = set()
        self._one: dict[int, t.Local] = {}

    def function(self, function: t.Function) -> t.Function:
        known = -1
        while known < len(self._whole):
            known = len(self._whole)
            self._find(function.body)
            self._needs(function.value)
        index = replace(self._components.component)
        args = [*map(self._local, function.args), index]
        body, value = self._block(function.body), self._component(function.value)
        return t.Function(f"{function.name}_component", "float", args, body, value)

    # --- what is needed whole -------------------------------------------------------------------
    def _find(self, body: list[t.Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, t.Declare):
                if stmt.value is None:
                    self._whole.add(stmt.local.uid)
                else:
                    self._assigned(stmt.local, stmt.value)
            elif isinstance(stmt, t.Assign) and isinstance(stmt.target, t.Local):
                if stmt.index is not None:
                    self._uses(stmt.index)
                if stmt.component is not None:
                    self._whole.add(stmt.target.uid)
                self._assigned(stmt.target, stmt.value)
            elif isinstance(stmt, t.If):
                self._uses(stmt.condition)
                self._find(stmt.then)
                self._find(stmt.orelse)
            elif isinstance(stmt, t.For):
                self._find(stmt.body)

    def _assigned(self, local: t.Local, value: t.Expr) -> None:
        if self._has_component(local):
            self._needs(value)
        else:
            self._uses(value)

    def _has_component(self, local: t.Local) -> bool:
        return local.type == _WHOLE and not local.size and local.uid not in self._whole

    def _uses(self, expr: t.Expr) -> None:
        """Note that an expression is needed as it is."""
        if isinstance(expr, t.LocalRef):
            self._whole.add(expr.local.uid)
        for child in t.children(expr):
            self._uses(child)

    def _needs(self, expr: t.Expr) -> None:
        """Note that one component of an expression is needed."""
        if isinstance(expr, t.LocalRef):
            return
        if isinstance(expr, t.Call):
            function = self._components.function(expr.function)
            for arg, wanted in zip(expr.args, function.args, strict=False):
                if wanted.type == arg.type:
                    self._uses(arg)
                else:
                    self._needs(arg)
        elif isinstance(expr, t.Op) and _is_by_component(expr):
            for arg in expr.args:
                if arg.type == _WHOLE:
                    self._needs(arg)
                else:
                    self._uses(arg)
        else:
            self._uses(expr)

    # --- the same for one component -------------------------------------------------------------
    def _local(self, local: t.Local) -> t.Local:
        if not self._has_component(local):
            return local
        return self._one.setdefault(local.uid, replace(local, type="float"))

    def _index(self) -> t.Expr:
        return t.LocalRef("int", self._components.component, t.VARYING)

    def _component(self, expr: t.Expr) -> t.Expr:
        """Return one component of an expression."""
        if isinstance(expr, t.LocalRef) and self._has_component(expr.local):
            return t.LocalRef("float", self._local(expr.local), expr.time)
        if isinstance(expr, t.Load):
            return replace(expr, type="float", component=self._index())
        if isinstance(expr, t.Call):
            function = self._components.function(expr.function)
            args = [
                arg if wanted.type == arg.type else self._component(arg)
                for arg, wanted in zip(expr.args, function.args, strict=False)
            ]
            return t.Call("float", function, (*args, self._index()))
        if isinstance(expr, t.Op) and expr.name == "splat":
            return expr.args[0]
        if isinstance(expr, t.Op) and _is_by_component(expr):
            args = [self._component(arg) if arg.type == _WHOLE else arg for arg in expr.args]
            return replace(expr, type="float", args=tuple(args))
        return t.Op("float", "component", (expr, self._index()), t.VARYING)

    def _block(self, body: list[t.Stmt]) -> list[t.Stmt]:
        return [self._statement(stmt) for stmt in body]

    def _statement(self, stmt: t.Stmt) -> t.Stmt:
        if (
            isinstance(stmt, t.Declare)
            and self._has_component(stmt.local)
            and stmt.value is not None
        ):
            return t.Declare(self._local(stmt.local), self._component(stmt.value))
        if isinstance(stmt, t.Assign) and isinstance(stmt.target, t.Local):
            if self._has_component(stmt.target):
                target, value = self._local(stmt.target), self._component(stmt.value)
                return replace(stmt, target=target, value=value)
        elif isinstance(stmt, t.If):
            return t.If(stmt.condition, self._block(stmt.then), self._block(stmt.orelse))
        elif isinstance(stmt, t.For):
            return replace(stmt, body=self._block(stmt.body))
        return stmt


def _is_by_component(expr: t.Op) -> bool:
    """Tell whether a vec4 is an operator's result, component by component."""
    return expr.name not in _OPERATORS and all(
        arg.type == _WHOLE or t.WIDTH[arg.type] == 1 for arg in expr.args
    )
