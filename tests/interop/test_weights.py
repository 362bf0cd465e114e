"""Reading weights: what safetensors wrote is read alike, whatever is wrong with a file is one line;
nothing else is opened, nothing outside the folder, and nothing is ever unpickled.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save, save_file

from mhsh.errors import UserError
from mhsh.interop.weights import INDEX_FILE, WEIGHTS_FILE, SafetensorsFile, open_weights

A = {"a": np.ones(2, np.float32)}
B = {"b": np.zeros((2, 1), np.float32)}
TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16), "ids": np.arange(5)}
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def refusal(source, opened=open_weights):
    with pytest.raises(UserError) as error:
        opened(source)
    assert "\n" not in str(error.value) and str(source) in str(error.value) and len(str(error.value)) < 500
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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3, np.float64), "the tensor x is F64, not one of F32, F16, BF16"),
        (np.array([0, np.nan], np.float32), "holds numbers that are not finite"),
        (np.array([0, np.inf], np.float16), "holds numbers that are not finite"),
    ],
)
def test_tensors_that_are_not_read(tmp_path, values, message):
    save_file({"x": values}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=message):
        file.read("x")


def test_truncated_and_damaged_files_are_refused(tmp_path):
    """Cut anywhere; or bytes of the header changed at random: then the tensors may also lie inside
    the file, and can be read or are refused by type.
    """
    path, whole, rng = tmp_path / WEIGHTS_FILE, bytearray(save(TENSORS)), random.Random(0)
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(path)
    path.write_bytes(whole + b"\0")
    assert "file not fully covered" in refusal(path)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(header)] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            file = SafetensorsFile(path)
            for name in file.shapes:
                file.read(name)
        except UserError:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize(
    ("length", "header", "message"),
    [
        (1 << 63, b"{}", "header too large"),
        (None, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion limit exceeded"),
        (None, b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}', "not fully covered"),
        (None, b'{"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,0]}}', "overflow"),
    ],
)
def test_a_hostile_header_is_one_line(tmp_path, length, header, message):
    """A length without end, nesting, and tensors larger than any file."""
    (tmp_path / WEIGHTS_FILE).write_bytes(struct.pack("<Q", length or len(header)) + header)
    assert message in refusal(tmp_path / WEIGHTS_FILE)


def test_one_file_by_its_folder_or_its_name(tmp_path):
    save_file(A, tmp_path / WEIGHTS_FILE)
    save_file(B, tmp_path / "other.safetensors")
    assert open_weights(tmp_path).keys() == {"a"}
    weights = open_weights(tmp_path / "other.safetensors")
    assert weights["b"].shapes == {"b": (2, 1)} and weights["b"].path == tmp_path / "other.safetensors"


@pytest.fixture
def sharded(tmp_path):
    """sharded(weight_map): the folder of two files, with this index."""
    for tensors, name in zip((A, B), FILES, strict=True):
        save_file(tensors, tmp_path / name)

    def make(weight_map, folder=tmp_path):
        (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": weight_map}))
        return folder

    return make


def test_several_files_and_their_index(sharded):
    weights = open_weights(sharded(dict(zip("ab", FILES, strict=True))))
    assert weights.keys() == {"a", "b"} and weights["a"].path != weights["b"].path
    np.testing.assert_array_equal(weights["a"].read("a"), A["a"])


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/etc/passwd", "/tmp/x.safetensors", "sub/model.safetensors", "", "a\\b.safetensors",
     "C:x.safetensors", "a\0.safetensors", "model.bin", 7],
)  # fmt: skip
def test_an_index_that_leads_out_of_its_folder(sharded, tmp_path, name):
    (tmp_path / "inner").mkdir()
    save_file(A, tmp_path / "outside.safetensors")
    line = refusal(sharded({"a": name}, tmp_path / "inner"))
    assert "Expected `str`" in line and "$.weight_map[" in line and INDEX_FILE in line


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "gone.safetensors"}, "gone.safetensors: No such file or directory"),
        ({"a": FILES[0], "c": FILES[1]}, f"{FILES[1]} has the tensor b, against the index"),
        ({"a": FILES[0], "x": FILES[0]}, "lacks the tensor x, against the index"),
        (["a"], "Expected `object`, got `array` - at `$.weight_map`"),
    ],
)
def test_an_index_that_is_wrong(sharded, weight_map, message):
    assert message in refusal(sharded(weight_map))


class Payload:
    """What a pickle does when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pkl", "model.safetensors"])
@pytest.mark.parametrize("in_zip", [False, True])
def test_pickles_are_not_opened(tmp_path, name, in_zip):
    """Under whatever name: plain, or in the zip that torch.save writes."""
    witness = tmp_path / "witness"
    content = pickle.dumps(Payload(witness), protocol=2)
    if in_zip:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", content)
        content = buffer.getvalue()
    (tmp_path / name).write_bytes(content)
    for source in (tmp_path, tmp_path / name):
        assert "safetensors" in refusal(source)
    assert not witness.exists()


def test_what_is_no_checkpoint(tmp_path):
    assert "mhsh downloads nothing" in refusal(tmp_path / "bert-base-uncased")
    assert f"holds neither {WEIGHTS_FILE} nor {INDEX_FILE}" in refusal(tmp_path)
    (tmp_path / WEIGHTS_FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 440449768\n")
    assert "git lfs pull" in refusal(tmp_path)
