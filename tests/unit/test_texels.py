"""The bytes of texels: what host and shaders agree on, kind by kind, against plain arithmetic."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuedge.core.storage import BYTE_BUFFERS, KINDS, Storage
from gpuedge.core.texels import decode, encode, fixed16_step, moved

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("kind", ["buffer", "rgba32f", "rgba32ui", "rgba8_float"])
def test_every_exponent_stays_as_it_is(kind: str) -> None:
    exponents = np.arange(256, dtype=np.uint32) << 23
    mantissas = np.array([0, 1, 0x2AAAAA, 0x555555, 0x7FFFFE, 0x7FFFFF], np.uint32)
    signs = np.array([0, 1 << 31], np.uint32)
    bits = (signs[:, None, None] | exponents[:, None] | mantissas).reshape(-1)
    values = bits.view(np.float32)
    raw = encode(values, Storage(kind))
    assert raw == struct.pack(f"<{bits.size}I", *bits.tolist())
    np.testing.assert_array_equal(decode(raw, Storage(kind)).view(np.uint32), bits)


def test_bytes_of_a_float_are_in_the_order_of_colours() -> None:
    raw = encode([-1.5], Storage("rgba8_float"))  # sign 1, exponent 127, mantissa 0x400000
    red, green, blue, alpha = raw
    assert (red, green, blue, alpha) == (0x00, 0x00, 0xC0, 0xBF)


def test_all_integers() -> None:
    unsigned, signed = np.arange(256), np.arange(-128, 128)
    assert encode(unsigned, Storage("rgba8_u8")) == bytes(range(256))
    assert encode(signed, Storage("rgba8_s8")) == bytes(range(256))
    np.testing.assert_array_equal(decode(bytes(range(256)), Storage("rgba8_u8")), unsigned)
    np.testing.assert_array_equal(decode(bytes(range(256)), Storage("rgba8_s8")), signed)


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("rgba8_u8", [-1e30, -0.4, 0.5, 1.5, 254.4, 255.5, 1e30], [0, 0, 1, 2, 254, 255, 255]),
        ("rgba8_s8", [-1e30, -128.4, -0.5, 0.5, 127.5], [-128, -128, 0, 1, 127]),
        ("rgba8_u8", [np.nan, np.inf, -np.inf], [0, 255, 0]),
        ("rgba8_s8", [np.nan, np.inf, -np.inf], [-128, 127, -128]),
    ],
)
def test_integers_round_halves_up_and_stay_in_range(
    kind: str, values: list[float], wanted: list[int]
) -> None:
    np.testing.assert_array_equal(decode(encode(values, Storage(kind)), Storage(kind)), wanted)


def test_two_fractions_share_a_texel() -> None:
    storage = Storage("rgba8_fixed16", 0.0, 65535.0)
    assert encode([0x1234, 0xABCD], storage) == bytes([0x34, 0x12, 0xCD, 0xAB])


def test_every_fraction_comes_back() -> None:
    for low, high in ((0.0, 65535.0), (-256.0, -256.0 + 65535 / 128), (-1.0, 1.0), (3.0, 700.0)):
        storage = Storage("rgba8_fixed16", low, high)
        k = np.arange(65536, dtype="<u2")
        values = decode(k.tobytes(), storage)
        assert encode(values, storage) == k.tobytes()


@given(low=st.floats(-1e4, 1e4, width=32), span=st.floats(0.5, 1e4, width=32), data=st.data())
def test_fractions_err_by_half_a_step(low: float, span: float, data: st.DataObject) -> None:
    storage = Storage("rgba8_fixed16", low, low + span)
    value = np.float32(data.draw(st.floats(0, 1)) * span + low)
    back = decode(encode([value, value], storage), storage)
    step = fixed16_step(storage)
    # half a step, and three roundings of float32 at the size of the numbers involved
    size = max(abs(low), abs(low + span), 65535 * step)
    assert np.abs(np.float64(back) - np.float64(value)).max() <= step / 2 + 3 * 2.0**-24 * size


@given(value=floats)
def test_fractions_outside_their_range_are_at_its_ends(value: float) -> None:
    storage = Storage("rgba8_fixed16", -2.0, 6.0)
    back = decode(encode([value, value], storage), storage)
    nearest = min(max(value, -2.0), 6.0)
    np.testing.assert_allclose(back, nearest, rtol=0, atol=fixed16_step(storage) * 0.51)


def test_range_of_one_value() -> None:
    storage = Storage("rgba8_fixed16", 5.0, 5.0)
    assert fixed16_step(storage) == 0
    np.testing.assert_array_equal(decode(encode([5.0, 5.0], storage), storage), [5.0, 5.0])


@given(value=floats)
def test_halves_are_the_nearest(value: float) -> None:
    (got,) = decode(encode([value], Storage("rgba16f")), Storage("rgba16f"))
    try:
        (wanted,) = struct.unpack("<e", struct.pack("<e", value))
    except OverflowError:
        wanted = np.inf if value > 0 else -np.inf
    assert got == wanted


@pytest.mark.parametrize("kind", sorted(set(KINDS) - BYTE_BUFFERS))
def test_bytes_are_as_many_as_the_kind_says(kind: str) -> None:
    about = KINDS[kind]
    raw = encode(np.zeros((2, 3, 4)), Storage(kind, 0.0, 1.0))
    assert len(raw) == 6 * about.units * about.unit_bytes
    assert decode(raw, Storage(kind, 0.0, 1.0)).shape == (24,)


@pytest.mark.parametrize(("kind", "dtype"), [("rgba8_u8", "uint8"), ("rgba8_s8", "int8")])
def test_bytes_of_the_host_are_those_of_the_same_numbers(kind: str, dtype: str) -> None:
    values = np.arange(256).astype(np.uint8).view(dtype)
    storage = Storage(kind, float(values.min()), float(values.max()), dtype)
    raw = moved(values.view(np.uint8), storage)
    assert raw.tobytes() == encode(values, storage)
    np.testing.assert_array_equal(moved(raw, storage).view(dtype), values)
