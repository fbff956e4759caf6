"""Functions and statements as text of ESSL 3.00 and 3.10."""

from __future__ import annotations

from gpuedge.lang import tree as t
from gpuedge.lang.essl_expression import ExpressionPrinter

_INDENT = "    "


class FunctionPrinter(ExpressionPrinter):
    """Prints functions; main is wrapped by whoever knows how invocations come about."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self.lines.append(_INDENT * self.depth + text)

    def open(self, head: str) -> None:
        """Append a line that begins a block."""
        self.line(f"{head} {{")
        self.depth += 1

    def close(self) -> None:
        """End a block."""
        self.depth -= 1
        self.line("}")

    def function(self, function: t.Function) -> None:
        """Print a helper function."""
        args = ", ".join(f"{self.kind(a.type)} {self.local(a)}" for a in function.args)
        self.open(f"{self.kind(function.type)} f_{function.name}({args})")
        self.block(function.body)
        self.line(f"return {self.value(function.value)};")
        self.close()

    def block(self, body: list[t.Stmt]) -> None:
        """Print statements."""
        for stmt in body:
            if isinstance(stmt, t.Declare):
                self.declare(stmt)
            elif isinstance(stmt, t.Assign):
                self._assign(stmt)
            elif isinstance(stmt, t.If):
                self._if(stmt)
            elif isinstance(stmt, t.For):
                self.loop(stmt)
            elif isinstance(stmt, t.Store):
                self.store(stmt)
            else:
                self.line("memoryBarrierShared();")
                self.line("barrier();")

    def declare(self, stmt: t.Declare) -> None:
        """Print the declaration of a local."""
        local = stmt.local
        text = f"{self.kind(local.type)} {self.local(local)}"
        if local.size:
            text += f"[{local.size}]"
        self.line(f"{text};" if stmt.value is None else f"{text} = {self.value(stmt.value)};")

    def _assign(self, stmt: t.Assign) -> None:
        text = self.element(stmt.target, stmt.index)
        if stmt.component is not None:
            text += f".{'xyzw'[stmt.component]}"
        self.line(f"{text} = {self.value(stmt.value)};")

    def _if(self, stmt: t.If) -> None:
        self.open(f"if ({self.value(stmt.condition)})")
        self.block(stmt.then)
        if stmt.orelse:
            self.depth -= 1
            self.open("} else")
            self.block(stmt.orelse)
        self.close()

    def loop(self, stmt: t.For) -> None:
        """Print a loop."""
        name = self.local(stmt.index)
        start, bound = self.value(stmt.start), self.value(stmt.bound, 5)
        step = self.value(stmt.step)
        self.open(f"for (int {name} = {start}; {name} < {bound}; {name} += {step})")
        self.block(stmt.body)
        self.close()

    def store(self, stmt: t.Store) -> None:
        """Print a store into a buffer."""
        name = "storet" if stmt.name == "storet" else "store4"
        position, value = self.value(stmt.position), self.value(stmt.value)
        self.line(f"k_{name}_{stmt.tensor.name}({position}, {value});")
