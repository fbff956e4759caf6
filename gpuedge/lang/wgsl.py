"""Kernels printed as WGSL for WebGPU: one text that naga and Dawn both accept.

Tensors are storage arrays of texels, specs are overrides with the spec's id, extents and params lie
in one uniform block at the binding after the tensors, with the offsets of the blob's push block.

What is easy to get wrong because only one of the compilers objects, or because it depends on the
driver: loops round a barrier are bounded by uniform values (Dawn analyses that, naga does not);
an override or literal that meets another one in an operator is evaluated by the compiler, where
dividing by zero or overflowing is an error, so functions copy overrides to a ``let`` first; ``<``
after a name may begin a list of types, so comparisons stand in parentheses; compilers may assume
that there are no NaNs, so a value compared with itself becomes a look at its bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gpuedge.core.kernel import KernelBlob, PushArg, SpecArg, TensorArg
from gpuedge.lang import tree as t
from gpuedge.lang.wgsl_expression import TYPES, literal, size_text
from gpuedge.lang.wgsl_function import FunctionPrinter

_INDEX = """\
fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}
"""
_HELPERS = {
    # As unsigned numbers, so that a negative coordinate is out of range too.
    "k_in2": """\
fn k_in2(p: vec4<i32>, d: vec4<i32>) -> bool {
    return (u32(p.x) < u32(d.x)) && (u32(p.y) < u32(d.y));
}
""",
    "k_in4": """\
fn k_in4(p: vec4<i32>, d: vec4<i32>) -> bool {
    return all(vec4<u32>(p) < vec4<u32>(d));
}
""",
    "k_nan": """\
fn k_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
""",
}
_LOAD_Z = """\
fn k_z_{0}(p: vec4<i32>, d: vec4<i32>, last: u32) -> vec4<f32> {{
    let v = t_{0}[min(u32(k_at(p, d)), last)];
    return select(vec4<f32>(), v, k_in2(p, d));
}}
"""
_LOAD_1 = """\
fn k_one_{0}(e: i32, last: u32) -> f32 {{
    let at = min(u32(e), last * 4u + 3u);
    return t_{0}[at >> 2u][at & 3u];
}}
"""


class KernelPrinter:
    """Declares a kernel's interface and prints its functions.

    Attributes
    ----------
    helpers : set of str
        Names of the helper functions that were used so far.
    shares_ids : bool
        Whether a function other than main asks where it runs.
    """

    def __init__(self, kernel: t.Kernel) -> None:
        self.kernel = kernel
        self.helpers: set[str] = set()
        self.shares_ids = False
        self.push_args: list[PushArg] = []
        offset = 0
        for tensor in kernel.tensors:
            self.push_args.append(PushArg(tensor.name, "ivec4", offset))
            offset += 16
        for param in kernel.params:
            self.push_args.append(PushArg(param.name, param.type, offset))
            offset += 4
        self.push_bytes = offset

    def _interface(self) -> list[str]:
        lines = []
        for tensor in self.kernel.tensors:
            mode = "read" if tensor.access == "read" else "read_write"
            place = f"@group(0) @binding({tensor.binding})"
            lines.append(f"{place} var<storage, {mode}> t_{tensor.name}: array<vec4<f32>>;")
        lines.append("struct Push {")
        lines += [f"    d_{tensor.name}: vec4<i32>," for tensor in self.kernel.tensors]
        lines += [f"    p_{param.name}: {TYPES[param.type]}," for param in self.kernel.params]
        lines.append("}")
        binding = len(self.kernel.tensors)
        lines.append(f"@group(0) @binding({binding}) var<uniform> u: Push;")
        for spec in self.kernel.specs:
            value = literal(spec.type, spec.default)
            kind = TYPES[spec.type]
            lines.append(f"@id({spec.spec_id}) override s_{spec.name}: {kind} = {value};")
        for array in self.kernel.shared:
            kind = f"array<{TYPES[array.type]}, {size_text(array.size)}>"
            lines.append(f"var<workgroup> g_{array.name}: {kind};")
        if self.shares_ids:
            lines.append("var<private> k_local: vec3<i32>;")
            lines.append("var<private> k_group: vec3<i32>;")
        return lines

    def _helper_texts(self) -> list[str]:
        wanted = self.helpers
        texts = [_INDEX] + [text for name, text in _HELPERS.items() if name in wanted]
        for tensor in self.kernel.tensors:
            for prefix, text in (("k_z_", _LOAD_Z), ("k_one_", _LOAD_1)):
                if prefix + tensor.name in wanted:
                    texts.append(text.format(tensor.name))
        return texts

    def run(self) -> KernelBlob:
        """Print everything and return the blob."""
        functions = [FunctionPrinter(self, f).print() for f in self.kernel.functions]
        functions.append(FunctionPrinter(self, self.kernel.main).print())
        head = "\n".join([f"// {self.kernel.name}", *self._interface()])
        text = "\n".join([head + "\n", *self._helper_texts(), *functions])
        return self._blob(text.encode())

    def _blob(self, code: bytes) -> KernelBlob:
        kernel = self.kernel
        tensors = tuple(TensorArg(x.name, x.access, x.binding) for x in kernel.tensors)
        specs = tuple(SpecArg(x.name, x.type, x.spec_id, x.default) for x in kernel.specs)
        push = tuple(self.push_args)
        about = repr((kernel.name, "wgsl", "main", tensors, specs, push, self.push_bytes))
        digest = hashlib.sha256(about.encode() + b"\0" + code).hexdigest()
        return KernelBlob(
            kernel.name, "wgsl", code, "main", tensors, specs, push, self.push_bytes, digest
        )


def print_wgsl(kernel: t.Kernel, _: Mapping[str, str] | None = None) -> KernelBlob:
    """Print a kernel as a WGSL text with one entry point, ``main``; tensors are buffers."""
    return KernelPrinter(kernel).run()
