"""Layers of neural networks on numpy arrays; images are (N, C, H, W)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.dtypes import BYTES, as_float32, rounded
from gpuedge.core.errors import InputError, ShapeError
from gpuedge.core.interchange import as_numpy
from gpuedge.graph.build import GraphBuilder
from gpuedge.ops.arguments import (
    Padding,
    Size,
    activation_nodes,
    flag,
    integer,
    number,
    pad_attrs,
    pair,
)
from gpuedge.ops.call import Array, call, is_lazy, simple, warm

if TYPE_CHECKING:
    from gpuedge.core.words import Activation
    from gpuedge.device import Device


@warm
def conv2d(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
    activation: Activation | None = None,
    device: str | Device | None = None,
) -> Array:
    """Convolve a batch of images with a set of filters (a cross-correlation, as in ONNX Conv).

    Parameters
    ----------
    x : array_like of shape (N, C, H, W), float32 or float16
    w : array_like of shape (M, C / groups, kH, kW)
        Filters; must not hold NaN.
    b : array_like of shape (M,), optional
    stride, dilation : int or (int, int)
        Along (y, x), in pixels.
    padding : int, (int, int), ((top, bottom), (left, right)), "same" or "valid"
        Zeros added around the image. "same" keeps ceil(size / stride), the odd one at the end.
    groups : int
        C and M are split into as many independent groups; ``groups == C == M`` is depthwise.
    activation : str, optional
        ``relu``, ``relu6``, ``leaky_relu``, ``elu``, ``sigmoid``, ``tanh``, ``hard_swish``,
        ``silu`` or ``gelu``, fused into the same kernel.
    device : str or Device, optional

    Returns
    -------
    ndarray of shape (N, M, outH, outW)

    Raises
    ------
    ShapeError (GE-201)
        Channels, filters and groups do not fit, or the kernel exceeds the padded image.
    InputError (GE-203)
        `padding` or `activation` is not understood, or `w` holds NaN.

    Notes
    -----
    Error bound before the activation: 4 K 2^-24 sum(abs(x w)) with K = C / groups * kH * kW, and
    the bias, if there is one, counted as one more product
    (twice the bound of Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1, for
    recursive summation, allowing for products that are not fused). Integer-valued operands whose
    partial sums stay below 2^24 give exact results.

    Examples
    --------
    >>> import gpuedge, numpy as np
    >>> x, w = np.ones((1, 1, 3, 3), "f4"), np.ones((1, 1, 2, 2), "f4")
    >>> float(gpuedge.conv2d(x, w, device="cpu")[0, 0, 0, 0])
    4.0
    """
    attrs: dict[str, Any] = {
        "strides": pair("stride", stride),
        "dilations": pair("dilation", dilation),
        "group": integer("groups", groups),
        **pad_attrs(padding),
    }
    operands = {"x": x, "w": w, "b": b}
    return _convolve("conv2d", "Conv", operands, attrs, activation=activation, device=device)


@warm
def conv_transpose2d(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    activation: Activation | None = None,
    device: str | Device | None = None,
) -> Array:
    """Transposed convolution, the gradient of `conv2d` by its input (ONNX ConvTranspose).

    Parameters
    ----------
    x : array_like of shape (N, C, H, W), float32 or float16
    w : array_like of shape (C, M / groups, kH, kW)
        Filters; must not hold NaN.
    b : array_like of shape (M,), optional
    stride, dilation, output_padding : int or (int, int)
        Along (y, x), in pixels.
    padding : int, (int, int), ((top, bottom), (left, right)), "same" or "valid"
        Pixels cut off around the result.
    groups : int
    activation : str, optional
        As for `conv2d`.
    device : str or Device, optional

    Returns
    -------
    ndarray of shape (N, M, outH, outW)

    Raises
    ------
    ShapeError (GE-201), InputError (GE-203)
        As for `conv2d`.

    Notes
    -----
    Error bound before the activation: as for `conv2d`, with K = C / groups * kH * kW.
    """
    attrs: dict[str, Any] = {
        "strides": pair("stride", stride),
        "dilations": pair("dilation", dilation),
        "output_padding": pair("output_padding", output_padding),
        "group": integer("groups", groups),
        **pad_attrs(padding),
    }
    operands = {"x": x, "w": w, "b": b}
    return _convolve(
        "conv_transpose2d", "ConvTranspose", operands, attrs, activation=activation, device=device
    )


def _convolve(
    op: str,
    onnx_op: str,
    operands: Mapping[str, Any],
    attrs: Mapping[str, Any],
    *,
    activation: Activation | None,
    device: str | Device | None,
) -> Array:
    """Run a convolution of either direction with its activation; a bias of None is left out."""
    nodes = activation_nodes(activation)

    def write(builder: GraphBuilder, names: Sequence[str]) -> str:
        return nodes(builder, builder.add(onnx_op, names, attrs))

    inputs = [(n, value) for n, value in operands.items() if n != "b" or value is not None]
    key = (tuple(sorted(attrs.items())), activation)
    return call(op, inputs, write, device=device, key=key, weights=("w", "b"))


@warm
def matmul(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """Matrix product by numpy's rules: leading axes broadcast, vectors are taken as matrices.

    Notes
    -----
    Error bound: 4 K 2^-24 (abs(a) @ abs(b)) with K the length of the summed axis; exact for
    integer-valued operands whose partial sums stay below 2^24.
    """
    return simple("matmul", "MatMul", [("a", a), ("b", b)], device)


@warm
def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    device: str | Device | None = None,
) -> Array:
    """Compute alpha * a @ b + beta * c for matrices, either of them transposed first.

    Parameters
    ----------
    a : array_like of shape (M, K), or (K, M) with `trans_a`
    b : array_like of shape (K, N), or (N, K) with `trans_b`
    c : array_like that broadcasts to (M, N), optional
    alpha, beta : float
    trans_a, trans_b : bool
    device : str or Device, optional

    Notes
    -----
    Error bound: that of `matmul` times abs(alpha), plus 2 ULP of abs(alpha a @ b) + abs(beta c).
    """
    inputs = [("a", a), ("b", b)] + ([("c", c)] if c is not None else [])
    return simple(
        "gemm", "Gemm", inputs, device,
        alpha=number("alpha", alpha), beta=number("beta", beta),
        transA=int(flag("trans_a", trans_a)), transB=int(flag("trans_b", trans_b)),
    )  # fmt: skip


@warm
def max_pool2d(
    x: Any,
    kernel: Size,
    *,
    stride: Size | None = None,
    padding: Padding = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    device: str | Device | None = None,
) -> Array:
    """Maximum over windows; padding never wins. Exact.

    Parameters
    ----------
    x : array_like of shape (N, C, H, W), float32, float16, int8 or uint8
    kernel : int or (int, int)
    stride : int or (int, int), optional
        By default the kernel.
    padding : as for `conv2d`
        Each side below the kernel's reach.
    dilation : int or (int, int)
    ceil_mode : bool
        Whether a last window may hang over the end.
    device : str or Device, optional
    """
    return simple(
        "max_pool2d", "MaxPool", [("x", x)], device, also=BYTES,
        kernel_shape=pair("kernel", kernel),
        strides=pair("stride", kernel if stride is None else stride),
        dilations=pair("dilation", dilation), ceil_mode=int(flag("ceil_mode", ceil_mode)),
        **pad_attrs(padding),
    )  # fmt: skip


@warm
def avg_pool2d(
    x: Any,
    kernel: Size,
    *,
    stride: Size | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    device: str | Device | None = None,
) -> Array:
    """Mean over windows; padding counts in the divisor only with `count_include_pad`.

    Parameters are those of `max_pool2d`.

    Notes
    -----
    Error bound: (kH kW + 4) ULP of the mean of abs(x) in the window.
    """
    return simple(
        "avg_pool2d", "AveragePool", [("x", x)], device,
        kernel_shape=pair("kernel", kernel),
        strides=pair("stride", kernel if stride is None else stride),
        ceil_mode=int(flag("ceil_mode", ceil_mode)),
        count_include_pad=int(flag("count_include_pad", count_include_pad)), **pad_attrs(padding),
    )  # fmt: skip


@warm
def global_avg_pool2d(x: Any, *, device: str | Device | None = None) -> Array:
    """Mean over H and W, kept as extents of 1. Error bound: (H W + 4) ULP of mean(abs(x))."""
    return simple("global_avg_pool2d", "GlobalAveragePool", [("x", x)], device)


@warm
def global_max_pool2d(x: Any, *, device: str | Device | None = None) -> Array:
    """Maximum over H and W, kept as extents of 1. Exact."""
    return simple("global_max_pool2d", "GlobalMaxPool", [("x", x)], device)


@warm
def softmax(x: Any, axis: int = -1, *, device: str | Device | None = None) -> Array:
    """Exponentials along `axis`, scaled to sum to 1.

    Notes
    -----
    Relative error bound: (n + 3 abs(x - max) + 10) ULP, n the length of the axis.
    """
    return simple("softmax", "Softmax", [("x", x)], device, axis=integer("axis", axis))


@warm
def log_softmax(x: Any, axis: int = -1, *, device: str | Device | None = None) -> Array:
    """Logarithm of `softmax`. Error bound: (n + 16) 2^-23 + 2 ULP of x - max."""
    return simple("log_softmax", "LogSoftmax", [("x", x)], device, axis=integer("axis", axis))


@warm
def batch_norm(
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    var: Any,
    *,
    epsilon: float = 1e-5,
    device: str | Device | None = None,
) -> Array:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, one value each per channel (axis 1).

    Raises
    ------
    ShapeError (GE-201)
        A statistic has not one value per channel.
    InputError (GE-203)
        var + epsilon is not above zero, or a statistic holds NaN.

    Notes
    -----
    Scale and shift are combined in float64 on the host. Error bound: 3 ULP of
    abs(x) * abs(factor) + abs(shift).
    """
    if not is_lazy(x):
        x, dtype = as_float32(x, "'x' of batch_norm")
    statistics = {"scale": scale, "bias": bias, "mean": mean, "var": var}
    shape_of_x = x.shape
    numbers = {n: _per_channel(n, v, shape_of_x) for n, v in statistics.items()}
    if (numbers["var"] + number("epsilon", epsilon) <= 0).any():
        raise InputError("batch_norm needs var + epsilon above zero.")
    factor = numbers["scale"] / np.sqrt(numbers["var"] + epsilon)
    shift = numbers["bias"] - numbers["mean"] * factor
    shape = (-1,) + (1,) * (len(shape_of_x) - 2)
    inputs = [
        ("x", x),
        ("factor", factor.reshape(shape).astype(np.float32)),
        ("shift", shift.reshape(shape).astype(np.float32)),
    ]

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        return b.add("Add", [b.add("Mul", names[:2]), names[2]])

    result = call("batch_norm", inputs, write, device=device)
    return result if is_lazy(result) else rounded(result, dtype)


def _per_channel(name: str, value: Any, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return a statistic in float64, one value for each channel of `shape`."""
    value = as_numpy(value, f"'{name}' of batch_norm")
    try:
        given = np.asarray(value)  # a large one is refused before it is converted
        array = given.astype(np.float64) if given.shape == shape[1:2] else given
    except Exception:  # of what a list holds
        raise InputError(f"batch_norm has a {name} that is not an array of numbers.") from None
    if len(shape) < 2 or array.shape != (shape[1],):
        raise ShapeError(
            f"batch_norm has a {name} of shape {list(array.shape)} for x of shape {list(shape)}.",
            known="x has at least two axes, and every statistic one value per channel (axis 1)",
        )
    if np.isnan(array).any():
        raise InputError(f"batch_norm has a {name} that holds NaN.")
    return array
