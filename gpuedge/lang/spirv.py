"""Kernels printed as SPIR-V 1.0 for Vulkan: no compiler is needed on the device.

One blob serves Vulkan 1.0 (with VK_KHR_storage_buffer_storage_class) and later. What matters and is
easy to get wrong, because drivers accept it and compute nonsense or crash: the workgroup size is
a uvec3 whose parts are spec constants made unsigned by an addition; barriers order workgroup memory
(semantics 0x108); every load is clamped into its tensor; branch conditions stay scalar while
OpSelect on vectors takes a bool vector (SPIR-V before 1.4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gpuedge.core.kernel import KernelBlob, PushArg, SpecArg, TensorArg
from gpuedge.lang import spirv_module as s
from gpuedge.lang import tree as t
from gpuedge.lang.spirv_function import FunctionPrinter

_EXECUTION_LOCAL_SIZE = 17
_GL_COMPUTE = 5
_SPEC_OPERATORS = {"+": s.I_ADD, "-": s.I_SUB, "*": s.I_MUL, "/": s.S_DIV, "%": s.S_REM}


class KernelPrinter:
    """Declares a kernel's interface in a module and prints its functions."""

    def __init__(self, kernel: t.Kernel) -> None:
        self.kernel = kernel
        self.module = s.Module()
        self.functions: dict[str, int] = {}
        self.inputs: dict[int, int] = {}  # built-in inputs, listed by the entry point
        self.specs = {spec.name: self._spec(spec) for spec in kernel.specs}
        self.push_args: list[PushArg] = []
        self.push = self._push_block()
        self.tensors = {tensor.name: self._tensor(tensor) for tensor in kernel.tensors}
        self.shared = {array.name: self._shared(array) for array in kernel.shared}
        self._workgroup_size()

    def _spec(self, spec: t.Spec) -> int:
        m = self.module
        if spec.type == "bool":
            opcode = s.SPEC_TRUE if spec.default else s.SPEC_FALSE
            made = m.declare_typed(opcode, m.type("bool"))
        else:
            # The bits of the default are those of the ordinary constant.
            m.constant(spec.type, spec.default)
            made = m.declare_typed(s.SPEC_CONSTANT, m.type(spec.type), m.globals[-1])
        m.decorate(made, s.SPEC_ID, spec.spec_id)
        m.name(made, spec.name)
        return made

    def _push_block(self) -> int:
        m, offset, types = self.module, 0, []
        for tensor in self.kernel.tensors:
            self.push_args.append(PushArg(tensor.name, "ivec4", offset))
            types.append(m.type("ivec4"))
            offset += 16
        for param in self.kernel.params:
            self.push_args.append(PushArg(param.name, param.type, offset))
            types.append(m.type(param.type))
            offset += 4
        self.push_bytes = offset
        block = m.declare(s.TYPE_STRUCT, *types)
        m.decorate(block, s.BLOCK)
        for index, arg in enumerate(self.push_args):
            m.decorate_member(block, index, s.OFFSET, arg.offset)
        made = m.declare_typed(s.VARIABLE, m.pointer(s.PUSH_CONSTANT, block), s.PUSH_CONSTANT)
        m.name(made, "push")
        return made

    def _tensor(self, tensor: t.Tensor) -> int:
        m = self.module
        # Decorations sit on the type, so each binding has a struct of its own.
        block = m.declare(s.TYPE_STRUCT, m.texels())
        m.decorate(block, s.BLOCK)
        m.decorate_member(block, 0, s.OFFSET, 0)
        made = m.declare_typed(s.VARIABLE, m.pointer(s.STORAGE_BUFFER, block), s.STORAGE_BUFFER)
        m.decorate_member(block, 0, s.NON_WRITABLE if tensor.access == "read" else s.NON_READABLE)
        m.decorate(made, s.DESCRIPTOR_SET, 0)
        m.decorate(made, s.BINDING, tensor.binding)
        m.name(made, tensor.name)
        return made

    def _shared(self, array: t.Shared) -> int:
        m = self.module
        kind = m.declare(s.TYPE_ARRAY, m.type(array.type), self.spec_value(array.size))
        made = m.declare_typed(s.VARIABLE, m.pointer(s.WORKGROUP, kind), s.WORKGROUP)
        m.name(made, array.name)
        return made

    def spec_value(self, expr: t.Expr) -> int:
        """Return a module-level constant for an int expression of const and spec."""
        m = self.module
        if isinstance(expr, t.Literal):
            return m.constant(expr.type, expr.value)
        if isinstance(expr, t.SpecRef):
            return self.specs[expr.spec.name]
        if not isinstance(expr, t.Binary):
            raise TypeError(f"{type(expr).__name__} is no size of an array")
        left, right = self.spec_value(expr.left), self.spec_value(expr.right)
        return m.declare_typed(s.SPEC_OP, m.type(expr.type), _SPEC_OPERATORS[expr.op], left, right)

    def _workgroup_size(self) -> None:
        m = self.module
        uint = m.type("uint")
        zero = m.constant("uint", 0)
        # int + 0u is how a signed spec constant becomes the uint that the built-in must have.
        sizes = [
            m.declare_typed(s.SPEC_OP, uint, s.I_ADD, self.spec_value(size), zero)
            for size in self.kernel.local_size
        ]
        made = m.declare_typed(s.SPEC_COMPOSITE, m.type("uvec3"), *sizes)
        m.decorate(made, s.BUILT_IN, s.WORKGROUP_SIZE)

    def input(self, built_in: int) -> int:
        """Return the variable of a uvec3 built-in input, declared at its first use."""
        if built_in not in self.inputs:
            m = self.module
            kind = m.pointer(s.INPUT, m.type("uvec3"))
            made = m.declare_typed(s.VARIABLE, kind, s.INPUT)
            m.decorate(made, s.BUILT_IN, built_in)
            self.inputs[built_in] = made
        return self.inputs[built_in]

    def run(self) -> KernelBlob:
        """Print everything and return the blob."""
        kernel, m = self.kernel, self.module
        for function in kernel.functions:
            self.functions[function.name] = FunctionPrinter(self, function).print()
        main = FunctionPrinter(self, kernel.main).print()
        name = s.words_of("main")
        inputs = tuple(self.inputs.values())
        m.heads += ((3 + len(name) + len(inputs)) << 16 | s.ENTRY_POINT, _GL_COMPUTE, main)
        m.heads += (*name, *inputs)
        # A size that the WorkgroupSize built-in overrides; some tools insist on having one.
        m.heads += (6 << 16 | s.EXECUTION_MODE, main, _EXECUTION_LOCAL_SIZE, 1, 1, 1)
        m.name(main, kernel.name)
        return self._blob(m.assemble())

    def _blob(self, code: bytes) -> KernelBlob:
        kernel = self.kernel
        tensors = tuple(TensorArg(x.name, x.access, x.binding) for x in kernel.tensors)
        specs = tuple(SpecArg(x.name, x.type, x.spec_id, x.default) for x in kernel.specs)
        push = tuple(self.push_args)
        about = repr((kernel.name, "spirv", "main", tensors, specs, push, self.push_bytes))
        digest = hashlib.sha256(about.encode() + b"\0" + code).hexdigest()
        return KernelBlob(
            kernel.name, "spirv", code, "main", tensors, specs, push, self.push_bytes, digest
        )


def print_spirv(kernel: t.Kernel, _: Mapping[str, str] | None = None) -> KernelBlob:
    """Print a kernel as a SPIR-V binary with one entry point, ``main``; tensors are buffers."""
    return KernelPrinter(kernel).run()
