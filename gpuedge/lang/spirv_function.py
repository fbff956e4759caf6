"""Functions as SPIR-V: locals that are never assigned are plain ids, all others variables."""

from __future__ import annotations

from collections.abc import Callable

from gpuedge.lang import spirv_module as s
from gpuedge.lang import tree as t
from gpuedge.lang.spirv_expression import ExpressionPrinter

_WORKGROUP_SCOPE, _WORKGROUP_ORDER = 2, 0x108  # AcquireRelease | WorkgroupMemory


class FunctionPrinter(ExpressionPrinter):
    """Prints one function; `print` returns its id."""

    # --- statements ---------------------------------------------------------------------------
    def block(self, body: list[t.Stmt]) -> None:
        """Print statements."""
        for stmt in body:
            if isinstance(stmt, t.Declare):
                self._declare(stmt)
            elif isinstance(stmt, t.Assign):
                value = self.value(stmt.value)
                self.do(s.STORE, self._element(stmt), value)
            elif isinstance(stmt, t.If):
                self._if(stmt)
            elif isinstance(stmt, t.For):
                self._for(stmt)
            elif isinstance(stmt, t.Store):
                self._store(stmt)
            else:
                scope = self.module.constant("uint", _WORKGROUP_SCOPE)
                order = self.module.constant("uint", _WORKGROUP_ORDER)
                self.do(s.CONTROL_BARRIER, scope, scope, order)

    def _variable(self, local: t.Local) -> int:
        m = self.module
        kind = m.type(local.type)
        if local.size:
            kind = m.once(s.TYPE_ARRAY, kind, m.constant("uint", local.size))
        made = m.id()
        pointer = m.pointer(s.PRIVATE_FUNCTION, kind)
        self.variables += (4 << 16 | s.VARIABLE, pointer, made, s.PRIVATE_FUNCTION)
        self.values[local.uid] = made
        return made

    def _declare(self, stmt: t.Declare) -> None:
        value = None if stmt.value is None else self.value(stmt.value)
        if value is None or stmt.local.assigned:
            variable = self._variable(stmt.local)
            if value is not None:
                self.do(s.STORE, variable, value)
        else:
            self.values[stmt.local.uid] = value

    def branch(self, condition: int, then: Callable[[], None], orelse: list[t.Stmt]) -> None:
        """Print both sides of a branch and where they meet again."""
        yes, merge = self.module.id(), self.module.id()
        no = self.module.id() if orelse else merge
        self.do(s.SELECTION_MERGE, merge, 0)
        self.do(s.BRANCH_CONDITIONAL, condition, yes, no)
        self.label(yes)
        then()
        self.do(s.BRANCH, merge)
        if orelse:
            self.label(no)
            self.block(orelse)
            self.do(s.BRANCH, merge)
        self.label(merge)

    def _if(self, stmt: t.If) -> None:
        condition = self.value(stmt.condition)
        self.branch(condition, lambda: self.block(stmt.then), stmt.orelse)

    def _for(self, stmt: t.For) -> None:
        m = self.module
        start, bound, step = (self.value(e) for e in (stmt.start, stmt.bound, stmt.step))
        variable = self._variable(stmt.index)
        self.do(s.STORE, variable, start)
        header, check, body, resume, merge = (m.id() for _ in range(5))
        self.do(s.BRANCH, header)
        self.label(header)
        self.do(s.LOOP_MERGE, merge, resume, 0)
        self.do(s.BRANCH, check)
        self.label(check)
        index = self.op(s.LOAD, "int", variable)
        inside = self.op(s.S_LESS_THAN, "bool", index, bound)
        self.do(s.BRANCH_CONDITIONAL, inside, body, merge)
        self.label(body)
        self.values[stmt.index.uid] = index  # one load per iteration: the body cannot change it
        self.block(stmt.body)
        self.do(s.BRANCH, resume)
        self.label(resume)
        self.do(s.STORE, variable, self.op(s.I_ADD, "int", index, step))
        self.do(s.BRANCH, header)
        self.label(merge)

    def _store(self, stmt: t.Store) -> None:
        tensor = stmt.tensor
        if stmt.name in ("store4", "emit"):
            parts = self._parts(stmt.position)
            inside = self._inside(tensor, parts, 4)
            index = self._texel_index(tensor, parts)
        else:
            index = self.value(stmt.position)
            one_more = self.op(s.I_ADD, "int", self._last(tensor), self.number(1))
            inside = self.op(s.U_LESS_THAN, "bool", index, one_more)
        value = self.value(stmt.value)
        self.branch(inside, lambda: self._write(tensor, index, value), [])

    # --- the function -------------------------------------------------------------------------
    def print(self) -> int:
        """Append the function to the module and return its id."""
        m, function = self.module, self.function
        is_map_main = function.name == "main" and function.type != "void"
        args = [] if function.name == "main" else function.args
        kind = "void" if function.name == "main" else function.type
        types = [m.type(kind), *(m.type(arg.type) for arg in args)]
        signature = m.once(s.TYPE_FUNCTION, *types)
        made = m.id()
        head = [5 << 16 | s.FUNCTION, types[0], made, 0, signature]
        for arg, arg_type in zip(args, types[1:], strict=True):
            self.values[arg.uid] = m.id()
            head += (3 << 16 | s.FUNCTION_PARAMETER, arg_type, self.values[arg.uid])
        head += (2 << 16 | s.LABEL, m.id())
        if is_map_main:
            self._map_main()
        else:
            self.block(function.body)
        if function.result is not None and not is_map_main:
            self.do(s.RETURN_VALUE, self.value(function.result))
        else:
            self.do(s.RETURN)
        self.do(s.FUNCTION_END)
        m.functions += (*head, *self.variables, *self.entry, *self.code)
        if not is_map_main and function.name != "main":
            m.name(made, function.name)
        return made

    def _map_main(self) -> None:
        """Print main under the guard that its texel exists, and store what it returns."""
        out = self.kernel.kernel.out
        invocation = self._input(s.GLOBAL_ID)
        x, y, z = (self.op(s.COMPOSITE_EXTRACT, "int", invocation, axis) for axis in range(3))
        slices = self.extent(out, 2)
        planes = self.op(s.I_MUL, "int", slices, self.extent(out, 3))
        inside = self._inside(out, [x, y], 2)
        fits = self.op(s.U_LESS_THAN, "bool", z, planes)
        inside = self.op(s.LOGICAL_AND, "bool", inside, fits)
        self.branch(inside, lambda: self._map_body(out, x, y, z), [])

    def _map_body(self, out: t.Tensor, x: int, y: int, z: int) -> None:
        slices = self.extent(out, 2)
        parts = [x, y, self.op(s.S_REM, "int", z, slices), self.op(s.S_DIV, "int", z, slices)]
        main = self.function
        self.values[main.args[0].uid] = self.op(s.COMPOSITE_CONSTRUCT, "ivec4", *parts)
        self.block(main.body)
        value = self.value(main.value)
        self._write(out, self._texel_index(out, parts), value)
