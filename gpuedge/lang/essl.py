"""Kernels printed as OpenGL ES shaders: ESSL 3.10 compute, ESSL 3.00 and 1.00 fragment.

A fragment shader computes one physical texel of its out texture (see `gpuedge.core.storage`); a
kernel without workgroups runs either way. Specs are macros, given by `KernelBlob.specialised`.

Names, which never meet each other or a word of the language: ``b_T``, ``t_T`` a tensor as buffer or
sampler, ``d_T`` its extents, ``i_T`` 1/width, 1/height, low and step of its texture, ``n_T`` its
last texel, ``o_T`` an output, ``p_N`` a param, ``S_N`` a spec, ``m_N`` a shared array, ``f_N`` a
function, ``l_N_uid`` a local, ``k_N`` a helper of the printer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob, PushArg, SpecArg, TensorArg
from gpuedge.core.storage import KINDS
from gpuedge.lang import essl100
from gpuedge.lang import tree as t
from gpuedge.lang.essl_access import (
    ESSL100,
    ESSL300,
    ESSL310,
    Level,
    accesses,
    count,
    declaration,
    stored,
)  # fmt: skip
from gpuedge.lang.essl_function import FunctionPrinter

_HELPER = re.compile(r"\bk_\w+|\bK_\w+")


def print_essl310(kernel: t.Kernel, storage: Mapping[str, str] | None = None) -> KernelBlob:
    """Print a kernel as an ESSL 3.10 compute shader; tensors are storage buffers."""
    return _Shader(kernel, ESSL310, storage or {}).blob()


def print_essl300(kernel: t.Kernel, storage: Mapping[str, str] | None = None) -> KernelBlob:
    """Print a map kernel as an ESSL 3.00 fragment shader.

    Parameters
    ----------
    kernel : Kernel
    storage : mapping of str to str, optional
        Storage kind of each tensor by name, ``rgba32f`` where none is given.

    Raises
    ------
    KernelError (GE-300)
        It is a group kernel, or its out tensors take different numbers of physical texels.
    """
    return _Shader(kernel, ESSL300, storage or {}).blob()


def print_essl100(kernel: t.Kernel, storage: Mapping[str, str] | None = None) -> KernelBlob:
    """Print a map kernel as an ESSL 1.00 fragment shader.

    Parameters
    ----------
    kernel : Kernel
    storage : mapping of str to str, optional
        Storage kind of each tensor by name, ``rgba8_float`` where none is given.

    Raises
    ------
    KernelError (GE-300)
        It is a group kernel, writes several tensors, or has an int that no float32 is equal to.
    """
    return _Shader(kernel, ESSL100, storage or {}).blob()


class _Fragments(FunctionPrinter):
    """Prints functions in ESSL 3.00, where further out tensors are outputs of the fragment."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        super().__init__()
        self.kinds = kinds

    def store(self, stmt: t.Store) -> None:
        """Print the value of a further output."""
        name = stmt.tensor.name
        self.line(f"vec4 v_{name} = {self.value(stmt.value)};")
        self.line(f"o_{name} = {stored(ESSL300, name, self.kinds[name], f'v_{name}')};")


class _Shader:
    """One kernel on its way to text."""

    def __init__(self, kernel: t.Kernel, level: Level, storage: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.level = level
        self.kinds = {x.name: storage.get(x.name, level.default) for x in kernel.tensors}
        self._check()
        self.printer = self._printer()
        self.units = KINDS[self.kinds[kernel.out.name]].units

    def _printer(self) -> FunctionPrinter:
        if self.level is ESSL310:
            return FunctionPrinter()
        return essl100.Printer(self.kernel.name) if self.level.is_old else _Fragments(self.kinds)

    def _refuse(self, what: str, known: str) -> None:
        raise KernelError(
            f"Kernel {self.kernel.name} cannot be printed as {self.level.dialect}: {what}.",
            known=known,
        )

    def _check(self) -> None:
        kernel, level = self.kernel, self.level
        if kernel.form == "group" and level is not ESSL310:
            self._refuse("it is a group kernel", "fragment shaders have no workgroups")
        for name, kind in self.kinds.items():
            if kind not in level.kinds:
                known = f"storage kinds: {', '.join(sorted(level.kinds))}"
                self._refuse(f"tensor {name} is kept as {kind!r}", known)
        if len(kernel.outs) > 1 and level.is_old:
            self._refuse("it writes several tensors", "a fragment writes one texel there")
        if len({KINDS[self.kinds[x.name]].units for x in kernel.outs}) > 1:
            known = "all out tensors of a fragment shader take equally many physical texels"
            self._refuse("its out tensors differ in storage", known)

    # --- the text -------------------------------------------------------------------------------
    def text(self) -> str:
        """Return the whole shader."""
        printer = self.printer
        for function in self.kernel.functions:
            printer.function(function)
        self._main()
        body = "\n".join(printer.lines)
        head = self._head()
        helpers = self._helpers(body)
        used = "\n".join(helpers) + body
        counts = [
            "    " + count(self.level, x.name)
            for x in self.kernel.tensors
            if re.search(rf"\bn_{x.name}\b", used)
        ]
        body = body.replace("void main() {", "\n".join(["void main() {", *counts]), 1)
        return "\n".join([*head, *helpers, body, ""])

    def _head(self) -> list[str]:
        level, kernel = self.level, self.kernel
        lines = [f"#version {level.version}", "precision highp float;", "precision highp int;"]
        if level is not ESSL310:
            lines.append("precision highp sampler2D;")
        if level is ESSL300:
            lines.append("precision highp usampler2D;")
        lines.append("//SPECS")
        if level is ESSL310:
            x, y, z = (self._local_size(axis) for axis in range(3))
            size = f"local_size_x = {x}, local_size_y = {y}, local_size_z = {z}"
            lines.append(f"layout({size}) in;")
        for tensor in kernel.tensors:
            lines += declaration(level, tensor, self.kinds[tensor.name])
        if level is ESSL300:
            for location, out in enumerate(kernel.outs):
                kind = "uvec4" if self.kinds[out.name] == "rgba32ui" else "vec4"
                lines.append(f"layout(location = {location}) out highp {kind} o_{out.name};")
        for param in kernel.params:
            lines.append(f"uniform highp {self.printer.kind(param.type)} p_{param.name};")
        for array in kernel.shared:
            size = self.printer.value(array.size)
            lines.append(f"shared highp {array.type} m_{array.name}[{size}];")
        return lines

    def _local_size(self, axis: int) -> str:
        if self.kernel.form == "map":
            return f"S_L{'XYZ'[axis]}"
        return self.printer.value(self.kernel.local_size[axis])

    def _helpers(self, body: str) -> list[str]:
        """Return the helper functions that `body` calls, and those that they call, in order."""
        known = dict(self.level.helpers)
        for tensor in self.kernel.tensors:
            known |= accesses(self.level, tensor, self.kinds[tensor.name])
        needed: set[str] = set()
        new = set(_HELPER.findall(body))
        while new:
            needed |= new
            new = set(_HELPER.findall("\n".join(known.get(n, "") for n in new))) - needed
        if any(name.startswith("K_") for name in needed):
            needed.add("k_powers")
        return [text for name, text in known.items() if name in needed]

    # --- main -----------------------------------------------------------------------------------
    def _main(self) -> None:
        printer, kernel = self.printer, self.kernel
        printer.open("void main()")
        if kernel.form == "group":
            printer.block(kernel.main.body)
        elif self.level is ESSL310:
            self._invocation()
        else:
            self._fragment()
        printer.close()

    def _invocation(self) -> None:
        """Print main of a compute shader under the guard that its texel exists."""
        printer, main, out = self.printer, self.kernel.main, self.kernel.out.name
        printer.line("ivec3 at = ivec3(gl_GlobalInvocationID);")
        inside = f"at.x < d_{out}.x && at.y < d_{out}.y && at.z < d_{out}.z * d_{out}.w"
        printer.open(f"if ({inside})")
        p = printer.local(main.args[0])
        printer.line(f"ivec4 {p} = ivec4(at.xy, at.z % d_{out}.z, at.z / d_{out}.z);")
        printer.block(main.body)
        printer.line(f"b_{out}[k_number_{out}({p})] = {printer.value(main.value)};")
        printer.close()

    def _fragment(self) -> None:
        """Print main of a fragment shader: which texel it is, its value, one unit of that."""
        printer, level, main = self.printer, self.level, self.kernel.main
        out = self.kernel.out.name
        # gl_FragCoord may be mediump, so nothing is computed with it before it is a highp value.
        printer.line("highp vec2 place = gl_FragCoord.xy;")
        if level.is_old:
            printer.line("float f = floor(place.y) * ROW + floor(place.x);")
        else:
            printer.line("uint f = uint(place.y) * uint(ROW) + uint(place.x);")
        printer.line(f"{level.index} texel = {level.divided('f', self.units)};")
        if self.units > 1:
            printer.line(f"{level.index} j = {level.remainder('f', self.units, 'texel')};")
        q = f"min(texel, n_{out})" if level.is_old else f"int(min(texel, n_{out}))"
        p = printer.local(main.args[0])
        printer.line(f"{level.whole4} {p} = k_position({q}, d_{out});")
        printer.block(main.body)
        printer.line(f"vec4 v = {printer.value(main.value)};")
        target = "gl_FragColor" if level.is_old else f"o_{out}"
        printer.line(f"{target} = {stored(level, out, self.kinds[out], 'v')};")

    # --- the blob -------------------------------------------------------------------------------
    def blob(self) -> KernelBlob:
        """Print everything and return the blob."""
        kernel, dialect = self.kernel, self.level.dialect
        code = self.text().encode()
        tensors = tuple(
            TensorArg(x.name, x.access, x.binding, self.kinds[x.name]) for x in kernel.tensors
        )
        specs = tuple(SpecArg(x.name, x.type, x.spec_id, x.default) for x in kernel.specs)
        push = [PushArg(x.name, "ivec4", 16 * i) for i, x in enumerate(kernel.tensors)]
        size = 16 * len(push)
        for param in kernel.params:
            push.append(PushArg(param.name, param.type, size))
            size += 4
        about = repr((kernel.name, dialect, "main", tensors, specs, push, size))
        digest = hashlib.sha256(about.encode() + b"\0" + code).hexdigest()
        return KernelBlob(
            kernel.name, dialect, code, "main", tensors, specs, tuple(push), size, digest
        )
