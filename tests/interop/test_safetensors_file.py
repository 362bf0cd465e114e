"""Reading safetensors: what the library wrote is read alike, and whatever is wrong with a file is
one line.
"""

from __future__ import annotations

import json
import random
import struct

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save, save_file

from mhsh.errors import UserError
from mhsh.interop.weights import SafetensorsFile

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16), "ids": np.arange(5)}


def file_with(path, header, data=b""):
    """A file of a header (bytes, or the object to write) and the bytes of tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refusal(path):
    with pytest.raises(UserError) as error:
        SafetensorsFile(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value) and len(str(error.value)) < 500
    return str(error.value)


@given(
    tensors=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(lambda name: name != "__metadata__"),
        arrays.arrays(
            st.sampled_from([np.float32, np.float16]),
            arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
            elements=dict(allow_nan=False, allow_infinity=False),
        ),
        max_size=4,
    )
)
def test_what_the_library_writes(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("written") / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    file = SafetensorsFile(path)
    assert file.shapes.keys() == tensors.keys()
    for name, values in tensors.items():
        read = file.read(name)
        assert read.dtype == np.float32 and read.shape == values.shape
        np.testing.assert_array_equal(read, values.astype(np.float32))


def test_bfloat16(tmp_path):
    """Every finite one of the 65,536, against bits put in the place where fp32 has them."""
    bits = np.arange(2**16, dtype=np.uint16)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    finite = np.isfinite(expected)
    save_file({"x": bits[finite].view(jnp.bfloat16)}, tmp_path / "x.safetensors")
    read = SafetensorsFile(tmp_path / "x.safetensors").read("x")
    np.testing.assert_array_equal(read.view(np.uint32), expected[finite].view(np.uint32))


def test_every_truncation_is_refused(tmp_path):
    whole = save(TENSORS)
    for length in range(len(whole)):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        refusal(tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(whole + b"\0")
    assert "file not fully covered" in refusal(tmp_path / "cut.safetensors")


def test_no_damage_to_the_header_is_a_traceback(tmp_path):
    """Bytes changed at random: refused, or tensors that lie inside the file and can be read or are
    refused by type.
    """
    whole = bytearray(save(TENSORS))
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    rng = random.Random(0)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(header)] = rng.randrange(256)
        path = tmp_path / "damaged.safetensors"
        path.write_bytes(damaged)
        try:
            file = SafetensorsFile(path)
            for name in file.shapes:
                file.read(name)
        except UserError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry(offsets=(0, 4))}, b"\0" * 4, "invalid shape, data type, or offset for tensor"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, b"\0" * 12, "invalid offset for tensor `b`"),
        ({"a": entry(), "b": entry(offsets=(12, 20))}, b"\0" * 20, "invalid offset for tensor `b`"),
        ({"a": entry(offsets=(8, 16))}, b"\0" * 16, "invalid offset for tensor `a`"),
        ({"a": entry(offsets=(8, 0))}, b"", "invalid offset for tensor `a`"),
        ({"a": entry(offsets=(-8, 0))}, b"\0" * 8, "invalid value: integer `-8`"),
        ({"a": entry(shape=(-2,))}, b"\0" * 8, "invalid value: integer `-2`"),
        ({"a": entry(shape=(2.0,))}, b"\0" * 8, "invalid type: floating point"),
        ({"a": entry(shape=(True, 2))}, b"\0" * 8, "invalid type: boolean"),
        ({"a": entry(shape=(2**62, 2**62), offsets=(0, 8))}, b"\0" * 8, "overflow"),
        ({"a": entry(dtype="F9")}, b"\0" * 8, "unknown variant"),
        ({"a": entry(dtype=["F32"])}, b"\0" * 8, "invalid type: sequence"),
        ({"a": {"dtype": "F32", "shape": [2]}}, b"\0" * 8, "missing field `data_offsets`"),
        ({"a": [1]}, b"", "invalid type"),
        (b"[]", b"", "invalid type: sequence"),
        (b"{", b"", "EOF while parsing"),
        (b"\xff\xfe", b"", "invalid UTF-8"),
        (b"[" * 100_000, b"", "cannot import"),
        (b'{"a": 1, "a": 2}', b"", "cannot import"),
    ],
)
def test_headers_that_lie(tmp_path, header, data, message):
    assert message in refusal(file_with(tmp_path / "model.safetensors", header, data))


def test_a_header_longer_than_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    for length, message in ((2**63, "header too large"), (200_000_000, "header too large"), (17, "invalid header length")):
        path.write_bytes(struct.pack("<Q", length) + b"{}" * 8)
        assert message in refusal(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3, np.float64), "the tensor x is F64, not one of F32, F16, BF16"),
        (np.zeros(3, np.int64), "the tensor x is I64"),
        (np.array([0, np.nan], np.float32), "holds numbers that are not finite"),
        (np.array([0, np.inf], np.float16), "holds numbers that are not finite"),
    ],
)
def test_tensors_that_are_not_read(tmp_path, values, message):
    save_file({"x": values}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=message):
        file.read("x")


def test_tensors_that_numpy_cannot_hold(tmp_path):
    path = file_with(
        tmp_path / "x.safetensors", {"f8": entry("F8_E4M3", (8,)), "empty": entry("F32", (2**62, 0), (8, 8))}, b"\0" * 8
    )
    file = SafetensorsFile(path)
    for name, message in (("f8", "the tensor f8 is F8_E4M3, not one of"), ("empty", "cannot import")):
        with pytest.raises(UserError, match=message):
            file.read(name)
