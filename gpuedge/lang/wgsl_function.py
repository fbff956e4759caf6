"""Functions as WGSL text: locals that are never assigned are ``let``, all others ``var``."""

from __future__ import annotations

from gpuedge.lang import tree as t
from gpuedge.lang.wgsl_expression import TYPES, ExpressionPrinter, array_name, name_of, size_text

_STEP = "    "


class FunctionPrinter(ExpressionPrinter):
    """Prints one function; `print` returns its text."""

    # --- statements ---------------------------------------------------------------------------
    def block(self, body: list[t.Stmt]) -> list[str]:
        """Print statements as lines."""
        lines: list[str] = []
        for stmt in body:
            if isinstance(stmt, t.Declare):
                lines.append(self._declare(stmt))
            elif isinstance(stmt, t.Assign):
                lines.append(self._assign(stmt))
            elif isinstance(stmt, t.If):
                lines += self._if(stmt)
            elif isinstance(stmt, t.For):
                lines += self._for(stmt)
            elif isinstance(stmt, t.Store):
                lines += self._store(stmt)
            else:
                lines.append("workgroupBarrier();")
        return lines

    def _inner(self, body: list[t.Stmt]) -> list[str]:
        return [_STEP + line for line in self.block(body)]

    def _declare(self, stmt: t.Declare) -> str:
        local, kind = stmt.local, TYPES[stmt.local.type]
        if local.size:
            kind = f"array<{kind}, {local.size}>"
        if stmt.value is None:
            return f"var {name_of(local)}: {kind};"
        word = "var" if local.assigned else "let"
        return f"{word} {name_of(local)}: {kind} = {self.value(stmt.value)};"

    def _assign(self, stmt: t.Assign) -> str:
        target = array_name(stmt.target)
        if stmt.index is not None:
            target += f"[{self.value(stmt.index)}]"
        if stmt.component is not None:
            target += f".{'xyzw'[stmt.component]}"
        return f"{target} = {self.value(stmt.value)};"

    def _if(self, stmt: t.If) -> list[str]:
        lines = [f"if ({self.value(stmt.condition)}) {{", *self._inner(stmt.then)]
        if stmt.orelse:
            lines += ["} else {", *self._inner(stmt.orelse)]
        return [*lines, "}"]

    def _for(self, stmt: t.For) -> list[str]:
        index = name_of(stmt.index)
        start, bound, step = (self.value(e) for e in (stmt.start, stmt.bound, stmt.step))
        head = f"for (var {index}: i32 = {start}; {index} < {bound}; {index} += {step}) {{"
        return [head, *self._inner(stmt.body), "}"]

    def _store(self, stmt: t.Store) -> list[str]:
        tensor, position = stmt.tensor, self.value(stmt.position)
        if stmt.name == "storet":
            inside, index = f"u32(at) <= {self.last(tensor)}", "at"
        else:
            d = self.extents(tensor)
            inside, index = f"{self.helper('k_in4')}(at, {d})", f"k_at(at, {d})"
        write = f"{_STEP}{_STEP}t_{tensor.name}[{index}] = {self.value(stmt.value)};"
        return ["{", f"{_STEP}let at = {position};", f"{_STEP}if ({inside}) {{", write,
                f"{_STEP}}}", "}"]  # fmt: skip

    # --- the function -------------------------------------------------------------------------
    def print(self) -> str:
        """Return the text of the function."""
        function = self.function
        if function is not self.kernel.kernel.main:
            args = ", ".join(f"{name_of(a)}: {TYPES[a.type]}" for a in function.args)
            head = [f"fn f_{function.name}({args}) -> {TYPES[function.type]} {{"]
            body = self.block(function.body)
            body.append(f"return {self.value(function.value)};")
        elif function.type == "void":
            head = [self._stage(), "fn main("]
            head += ["    @builtin(local_invocation_id) local: vec3<u32>,"]
            head += ["    @builtin(workgroup_id) group: vec3<u32>,", ") {"]
            body = self._ids() + self.block(function.body)
        else:
            head = [self._stage(), "fn main(@builtin(global_invocation_id) id: vec3<u32>) {"]
            body = self._map_main()
        lines = [*self.entry.values(), *body]
        return "\n".join([*head, *(_STEP + line for line in lines), "}"]) + "\n"

    def _stage(self) -> str:
        sizes = ", ".join(size_text(size) for size in self.kernel.kernel.local_size)
        return f"@compute @workgroup_size({sizes})"

    def _ids(self) -> list[str]:
        word = "" if self.kernel.shares_ids else "let "
        return [f"{word}k_local = vec3<i32>(local);", f"{word}k_group = vec3<i32>(group);"]

    def _map_main(self) -> list[str]:
        """Print main under the guard that its texel exists, and store what it returns."""
        main, out = self.function, self.kernel.kernel.out
        d = self.extents(out)
        place = name_of(main.args[0])
        body = self._inner(main.body)
        value = self.value(main.value)
        inside = f"all(id < vec3<u32>(vec3<i32>({d}.x, {d}.y, {d}.z * {d}.w)))"
        return [
            f"if ({inside}) {{",
            f"{_STEP}let z = i32(id.z);",
            f"{_STEP}let {place} = vec4<i32>(i32(id.x), i32(id.y), z % {d}.z, z / {d}.z);",
            *body,
            f"{_STEP}t_{out.name}[k_at({place}, {d})] = {value};",
            "}",
        ]
