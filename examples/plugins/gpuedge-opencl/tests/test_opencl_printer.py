"""What the plug-in does without a driver: finding drivers, printing kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpuedge_opencl.candidates import VENDORS, candidates
from gpuedge_opencl.printer import literal, print_kernel

from gpuedge import lang
from gpuedge.core.errors import KernelError

MAP = """kernel map t;
in tensor A;
out tensor O;
spec int N = 2;
param float K;
float twice(float x) { return x * 2.0; }
vec4 main(ivec4 p) { vec4 v = load4z(A, p) * K; return p.x < N ? v : vec4(twice(v.y)); }
"""
GROUP = """kernel group t;
in tensor A;
out tensor O;
local_size(8, 1, 1);
shared vec4 m[8];
void main() { int l = local_id().x; m[l] = load4(A, ivec4(l, 0, 0, 0)); barrier();
store4(O, ivec4(l, 0, 0, 0), m[7 - l]); }
"""


def printed(text: str, **storage: str) -> str:
    return print_kernel(lang.load(text, filename="t.kern"), "opencl_c", storage).code.decode()


def test_every_function_gets_what_a_kernel_has() -> None:
    text = printed(MAP)
    tensors = "__global const float4* restrict t_A, __global float4* restrict t_O"
    assert f"_x, {tensors}, int4 d_A, int4 d_O, float p_K)" in text
    assert "t_A, t_O, d_A, d_O, p_K)" in text and "S_N" in text
    assert "select(" in text and "(float4)(" in text


def test_storages_are_loaded_without_extensions() -> None:
    assert "vload_half4(" in printed(MAP, A="buffer_f16")
    assert "vstore_half4_rte(" in printed(MAP, O="buffer_f16")
    assert "__global const char4* restrict b_A" in printed(MAP, A="buffer_s8")
    with pytest.raises(KernelError, match="kept as 'rgba16f'"):
        printed(MAP, A="rgba16f")


def test_groups_share_arrays() -> None:
    text = printed(GROUP)
    assert "__local float4 g_m[8];" in text and "barrier(CLK_LOCAL_MEM_FENCE);" in text
    assert "reqd_work_group_size(8, 1, 1)" in text


def test_literals() -> None:
    assert [literal("int", n) for n in (3, -3, -(2**31))] == ["3", "(-3)", "(-2147483647-1)"]
    assert [literal("float", x) for x in (0.5, -1e-7)] == ["0.5f", "(-1e-07f)"]
    assert literal("bool", True) == "true"


def test_drivers_are_found_as_files(tmp_path: Path) -> None:
    library = tmp_path / "libdriver.so"
    library.write_bytes(b"1")
    icd = tmp_path / "driver.icd"
    icd.write_text(f"{library}\n")
    (found,) = candidates({VENDORS: str(tmp_path)}, "opencl", "linux")
    assert (found.key, found.env[VENDORS]) == (str(icd), str(icd))
    library.write_bytes(b"22")
    (changed,) = candidates({VENDORS: str(icd)}, "opencl", "linux")
    assert changed.key == found.key and changed.fingerprint != found.fingerprint
    assert candidates({VENDORS: str(tmp_path / "none")}, "opencl", "linux") == []
    assert [c.key for c in candidates({}, "opencl", "win32")] == ["system"]
