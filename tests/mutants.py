"""Kernels that are wrong in one place: the suite is worth something only if it finds them all."""

from __future__ import annotations

from collections.abc import Mapping

MUTANTS: dict[str, tuple[str, str, str]] = {
    "conv2d: padding off by one": ("map/conv2d", "ky * DY - PT", "ky * DY - PT + 1"),
    "conv2d: dilation along the wrong axis": ("map/conv2d", "kx * DX", "kx * DY"),
    "conv2d: first slice of a group": ("map/conv2d", "* ICG / 4", "* OCG / 4"),
    "conv2d_px4: stride of the neighbours": ("group/conv2d_px4", "x + j * SX", "x + j"),
    "conv2d_px4: a lane of the weights": ("group/conv2d_px4", "v.w * w3", "v.w * w2"),
    "conv2d_px4: last pixels": ("group/conv2d_px4", "ox + j < d.x", "ox + j < d.x - 1"),
    "dwconv2d: tap order": ("map/dwconv2d", "ky * KW + kx", "kx * KW + ky"),
    "conv_transpose2d: division": ("map/conv_transpose2d", "y * SY == fy", "y * SY <= fy"),
    "conv2d_tile: last columns": ("group/conv2d_tile", "ox + j < d.x", "ox + j < d.x - 1"),
    "conv2d_tile: columns that taps share": ("group/conv2d_tile", "v[j + t]", "v[j]"),
    "conv2d_tile: last slice of a group": ("group/conv2d_tile", "oz + o < end", "oz + o < d.z"),
    "conv2d_tile: inputs of a group": ("group/conv2d_tile", "* ICG / 4", "* OCG / 4"),
    "conv2d_tile: weights of a row": (
        "group/conv2d_tile", "min(oy, d.y - 1) :", "min(oy, d.y - 2) :"),
    "conv2d_tile: third channel of an image": (
        "group/conv2d_tile", ": v.x * w0 + v.y * w1 + v.z * w2", ": v.x * w0 + v.y * w1"),
    "conv2d_tile: weights of a lane": ("group/conv2d_tile", "mine >> 2", "mine >> 3"),
    "winograd_input: a pad": ("group/winograd_input", "/ ACROSS * 4 - PT", "/ ACROSS * 4 - PL"),
    "winograd_input: a point": (
        "group/winograd_input", "v[24 + j] - 0.5 * v[12 + j]", "v[24 + j] - 0.25 * v[12 + j]"),
    "winograd_output: last row": ("group/winograd_output", "oy + i < d.y", "oy + i < d.y - 1"),
    "winograd_output: a constant": ("group/winograd_output", "0.35355339 * d1", "0.353 * d1"),
    "conv2d_unit: slice of a pixel": ("group/conv2d_unit", "oz + o) * plane", "oz) * plane"),
    "conv2d: weights of a row": ("map/conv2d", "BY_ROW > 0 ? p.y : 0", "BY_ROW > 0 ? 0 : 0"),
    "trim: rows": ("map/trim", "load4(X, p)", "load4(X, ivec4(p.x, 0, p.z, p.w))"),
    "winograd_input map: a pad": ("map/winograd_input", "row * 4 - PT", "row * 4 - PL"),
    "winograd_input map: a point": ("map/winograd_input", "-0.70710678 * s, -0.5",
                                    "-0.70710678 * s, -0.25"),
    "winograd_input map: fourth pixel": ("map/winograd_input", "f.w > 0.0 ? d", "f.w < 2.0 ? d"),
    "winograd_output map: last row": ("map/winograd_output", "(i == 0 ? 0 : 5)", "0"),
    "winograd_output map: a sign": ("map/winograd_output", "m3 + s * m4", "m3 + m4"),
    "winograd_output map: tiles": ("map/winograd_output", "(dims(O).x + 3) / 4", "dims(O).x / 4"),
    "conv2d_unit: lanes of a slice": ("group/conv2d_unit", "o % 2 * 4", "o % 1 * 4"),
    "conv2d_unit: image of a batch": ("group/conv2d_unit", "n * (last + 1)", "n * last"),
    "conv2d_run: last pixels": ("group/conv2d_run", "q + j < length", "q + j < length - 1"),
    "conv2d_run: last slice of a group": ("group/conv2d_run", "if (oz < end)", "if (oz < d.z)"),
    "conv2d_run: inputs of a group": ("group/conv2d_run", "* ICG / 4", "* OCG / 4"),
    "conv2d_run: weights of a row": ("group/conv2d_run", "? row : ky * KW", "? 0 : ky * KW"),
    "conv2d_run: pads": ("group/conv2d_run", "x >= 0 && y", "x >= -1 && y"),
    "conv2d_run: pixel of a lane": ("group/conv2d_run", "j * 8 + mine", "j * 4 + mine"),
    "conv_transpose2d_tile: taps apart": (
        "group/conv_transpose2d_tile", "kx0 + ix * SX", "kx0 + ix"),
    "conv_transpose2d_tile: no tap": (
        "group/conv_transpose2d_tile", "ky < KH && kx < KW", "kx < KW"),
    "dwconv2d_tile: stride of rows": ("group/dwconv2d_tile", "oy * ST + i", "oy + i"),
    "dwconv2d_tile: last row": ("group/dwconv2d_tile", "oy + r < d.y", "oy + r < d.y - 1"),
    "dwconv2d_row: columns that taps share": ("group/dwconv2d_row", "v[j + t]", "v[j]"),
    "dwconv2d_row: last columns": ("group/dwconv2d_row", "ox + j < d.x", "ox + j < d.x - 1"),
    "dwconv2d_row: dilation of rows": ("group/dwconv2d_row", "ky * DY", "ky * DX"),
    "matmul: last texel of K": ("map/matmul", "i < KT", "i < KT - 1"),
    "matmul_turned: last texel of K": ("map/matmul_turned", "i < KT", "i < KT - 1"),
    "matmul_turned: batch of B": ("map/matmul_turned", "B_ONE ? 0 : p.w", "A_ONE ? 0 : p.w"),
    "turn: columns": ("map/turn", "ivec4(p.y, 0, p.x, p.w)", "ivec4(p.y, 0, 0, p.w)"),
    "matmul_rows: batch of B": ("group/matmul_rows", "B_ONE ? 0 : n", "A_ONE ? 0 : n"),
    "matmul_rows: third row": ("group/matmul_rows", "c2 += vec4(a2.x", "c2 += vec4(a1.x"),
    "matmul_tile: row of the tile": ("group/matmul_tile", "int y = row0 + r * T + ly",
                                     "int y = row0 + r * T + (T - 1 - ly)"),
    "matmul_block: rows below the last": ("group/matmul_block", "row < below", "row <= below"),
    "matmul_block: a column of B": ("group/matmul_block", "v[2 * COLUMNS + c]", "v[COLUMNS + c]"),
    "matmul_block: tiles of a row": ("group/matmul_block", "tile / across) * ROWS",
                                     "tile / (across + 1)) * ROWS"),
    "matmul_block: last texels of K": ("group/matmul_block", "turn + i < KT", "turn + i <= KT"),
    "matmul_block: row of a lane": ("group/matmul_block", "r * 8 + lane", "r * 4 + lane"),
    "matmul_block: batch of B": ("group/matmul_block", "B_ONE ? 0 : n", "A_ONE ? 0 : n"),
    "pool: maximum starts at zero": ("map/pool", "if (found)", "if (found || true)"),
    "pool: trailing padding counts": ("map/pool", "x < d.x + PR", "x < d.x"),
    "pack: last lane": ("map/pack", "left > 3", "left > 4"),
    "pack_quad: last lane": ("group/pack_quad", "left > i ? v[i]", "left >= i ? v[i]"),
    "pack_quad: image of a batch": ("group/pack_quad", "(n * C +", "(n * 4 * d.z +"),
    "unpack_quad: channel": ("group/unpack_quad", "first + c * across", "first + c"),
    "unpack: lane": ("map/unpack", "c % 4)", "(c + 1) % 4)"),
}  # fmt: skip
"""Kernel, text to replace, its replacement. Each stays inside its tensors on a device."""

INTEGER_MUTANTS: dict[str, tuple[str, str, str]] = {
    "conv2d_int: no carry": ("map/conv2d_int", "floor(low *", "floor(0.0 * low *"),
    "conv2d_int: pads hold zero, not the zero point": (
        "map/conv2d_int", "vec4 v = load4z(X, ivec4(x, y, min(first + s, last), p.w));",
        "vec4 z = load4z(X, ivec4(x, y, min(first + s, last), p.w)); vec4 v = "
        "x < 0 || y < 0 || x >= dims(X).x || y >= dims(X).y ? vec4(0.0 - 128.0) : z;"),
    "conv2d_int: last slice of outputs": ("map/conv2d_int", "load4(K, ivec4(s * 4, t, p.z, 0))",
                                          "load4(K, ivec4(s * 4, t, min(p.z, 0), 0))"),
    "conv2d_int: bias in one digit": (
        "map/conv2d_int", "ivec4(3, KH * KW", "ivec4(2, KH * KW"),
    "conv2d_int_tile: no carry": (
        "group/conv2d_int_tile", "floor(low[i] *", "floor(0.0 * low[i] *"),
    "conv2d_int_tile: last columns": (
        "group/conv2d_int_tile", "(ox + j < d.x)", "(ox + j < d.x - 1)"),
    "conv2d_int_tile: last slice": ("group/conv2d_int_tile", "oz + o < end", "oz + o < end - 1"),
    "conv2d_int_tile: inputs of a group": (
        "group/conv2d_int_tile", "* ICG / 4", "* ICG / 4 + part"),
    "conv2d_int_tile: bias in one digit": (
        "group/conv2d_int_tile", "a = load4(K, ivec4(2,", "a = load4(K, ivec4(1,"),
    "matmul_int_block: no carry": (
        "group/matmul_int_block", "floor(low[i] *", "floor(0.0 * low[i] *"),
    "matmul_int_block: rows of a matrix": (
        "group/matmul_int_block", "min(y + r, d.y - 1)", "min(y + r, d.y - 2)"),
    "matmul_int_block: batch of A": ("group/matmul_int_block", "A_ONE ? 0 : n", "B_ONE ? 0 : n"),
    "matmul_bytes: offset": ("group/matmul_bytes", "- float(OFFSET)", "- float(OFFSET + 1)"),
    "matmul_bytes: sums of columns": ("group/matmul_bytes", "16843009", "65793"),
    "matmul_bytes: third byte": ("group/matmul_bytes", "* 65536", "* 65535"),
    "matmul_bytes: rows of B": ("group/matmul_bytes", "ivec4(x, k + 3", "ivec4(x, k + 2"),
    "matmul_bytes: last row": ("group/matmul_bytes", "y < d.y", "y < d.y - 1"),
    "matmul_bytes: high digit": ("group/matmul_bytes", "whole >> 16", "whole >> 15"),
    "matmul_bytes: low digit": ("group/matmul_bytes", "& 65535", "& 32767"),
    "matmul_bytes: whole": ("group/matmul_bytes", "* 4096.0", "* 2048.0"),
    "matmul_bytes: batch of B": ("group/matmul_bytes", "B_ONE ? 0 : n", "A_ONE ? 0 : n"),
    "conv2d_bytes: offset": ("group/conv2d_bytes", "float(OFFSET)", "float(OFFSET + 1)"),
    "conv2d_bytes: sums of weights": ("group/conv2d_bytes", "16843009", "65793"),
    "conv2d_bytes: third byte": ("group/conv2d_bytes", "* 65536 +", "* 65535 +"),
    "conv2d_bytes: input channels": ("group/conv2d_bytes", "ivec4(k + 3", "ivec4(k + 2"),
    "conv2d_bytes: last pixel": ("group/conv2d_bytes", "q <= last", "q <= last - 4"),
    "conv2d_bytes: image of a batch": ("group/conv2d_bytes", "y * SY + down, s, n)",
                                       "y * SY + down, s, 0)"),
    "conv2d_bytes: beyond the last slice": ("group/conv2d_bytes", "i + ly < SPAN", "i < SPAN"),
    "conv2d_bytes: columns of the kernel": ("group/conv2d_bytes", "(t - ky * KW)", "(t / KH)"),
    "conv2d_bytes: high digit": ("group/conv2d_bytes", "whole >> 16", "whole >> 15"),
    "conv2d_bytes: low digit": ("group/conv2d_bytes", "& 65535", "& 32767"),
    "conv2d_bytes: last digit of the bias": (
        "group/conv2d_bytes", "ivec4(3, row", "ivec4(2, row"),
    "matmul_int: no carry": ("map/matmul_int", "floor(low *", "floor(0.0 * low *"),
    "matmul_int: digits": ("map/matmul_int", "top * 16.0", "top * 8.0"),
}  # fmt: skip
"""The same of kernels whose sums of integers carry."""

_SUMS = {
    "map/conv2d": ("acc", "v.x"), "group/conv2d_px4": ("c[j]", "v.x"), "map/dwconv2d": ("acc", "v"),
    "map/conv_transpose2d": ("acc", "v.x"), "map/matmul": ("acc", "a.x"),
    "group/matmul_rows": ("c1", "a1.x"), "group/matmul_tile": ("c[r]", "a.x"),
    "group/dwconv2d_tile": ("c[r * OC + j]", "v[j * ST + kx]"),
    "group/dwconv2d_row": ("c[j]", "v[j + t]"),
}  # fmt: skip
HALF_MUTANTS: dict[str, tuple[str, str, str]] = {
    f"{kernel}: sum in float16": (
        kernel, f"{total} += vec4({first} * ", f"{total} = vec4(hvec4({total}) + {first} * ")
    for kernel, (total, first) in _SUMS.items()
} | {
    f"group/{kernel}: sum in float16": (
        f"group/{kernel}", f"+= times({v}, w0, w1, w2, w3);",
        f"= vec4(hvec4(c[o * OC + j]) + hvec4(times({v}, w0, w1, w2, w3)));")
    for kernel, v in (
        ("conv2d_tile", "v[j + t]"), ("conv2d_unit", "v[j]"), ("conv_transpose2d_tile", "v[j]"))
} | {
    "group/conv2d_run: sum in float16": (
        "group/conv2d_run", "c[j] += times(", "c[j] = vec4(hvec4(c[j])); c[j] += times("),
    "group/matmul_block: sum in float16": (
        "group/matmul_block", "sum[r * COLUMNS + c] += times(",
        "sum[r * COLUMNS + c] = vec4(hvec4(sum[r * COLUMNS + c])); sum[r * COLUMNS + c] += times(")
}  # fmt: skip
"""Kernels that add up in float16, where they are to multiply in it only."""


def mutated(texts: Mapping[str, str], name: str) -> dict[str, str]:
    """Return kernel texts with one mistake."""
    kernel, old, new = (MUTANTS | INTEGER_MUTANTS | HALF_MUTANTS)[name]
    if old not in texts[kernel]:
        raise AssertionError(f"{kernel} no longer contains {old!r}")
    return {**texts, kernel: texts[kernel].replace(old, new)}
