"""Which files are opened: safetensors alone, inside the folder alone; nothing that is pickled is
ever unpickled.
"""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from mhsh.errors import UserError
from mhsh.interop.weights import INDEX_FILE, WEIGHTS_FILE, open_weights

A = {"a": np.ones(2, np.float32)}
B = {"b": np.zeros((2, 1), np.float32)}


class Payload:
    """What a pickle does when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def sharded(tmp_path):
    save_file(A, tmp_path / "model-00001-of-00002.safetensors")
    save_file(B, tmp_path / "model-00002-of-00002.safetensors")
    index(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    return tmp_path


def index(folder, weight_map):
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": weight_map}))


def refusal(source):
    with pytest.raises(UserError) as error:
        open_weights(source)
    return str(error.value)


def test_one_file_by_its_folder_or_its_name(tmp_path):
    save_file(A, tmp_path / WEIGHTS_FILE)
    save_file(B, tmp_path / "other.safetensors")
    assert open_weights(tmp_path).keys() == {"a"}
    weights = open_weights(tmp_path / "other.safetensors")
    assert weights["b"].shapes == {"b": (2, 1)} and weights["b"].path == tmp_path / "other.safetensors"


def test_several_files_and_their_index(sharded):
    weights = open_weights(sharded)
    assert weights.keys() == {"a", "b"} and weights["a"].path != weights["b"].path
    np.testing.assert_array_equal(weights["a"].read("a"), A["a"])


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "/tmp/x.safetensors",
        "sub/model.safetensors",
        "..",
        "",
        ".",
        "a\\b.safetensors",
        "C:x.safetensors",
        "a\0.safetensors",
        "model.bin",
        7,
        None,
    ],
)
def test_an_index_that_leads_out_of_its_folder(sharded, name):
    folder = sharded / "inner"
    folder.mkdir()
    save_file(A, sharded / "outside.safetensors")
    index(folder, {"a": name})
    assert "Expected `str`" in (line := refusal(folder)) and "$.weight_map[" in line and INDEX_FILE in line


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "gone.safetensors"}, "gone.safetensors: No such file or directory"),
        (
            {"a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"},
            "model-00002-of-00002.safetensors has the tensor b, against the index",
        ),
        (
            {"a": "model-00001-of-00002.safetensors", "x": "model-00001-of-00002.safetensors"},
            "lacks the tensor x, against the index",
        ),
        (["a"], "Expected `object`, got `array` - at `$.weight_map`"),
    ],
)
def test_an_index_that_is_wrong(sharded, weight_map, message):
    index(sharded, weight_map)
    assert message in refusal(sharded)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl", "model.ckpt", "weights.npz", "model.safetensors"])
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
        line = refusal(source)
        assert "safetensors" in line and str(tmp_path) in line and "\n" not in line
    assert not witness.exists()


def test_archives_are_not_unpacked(tmp_path):
    """One whose member would lie outside of the folder; nothing is written anywhere."""
    with tarfile.open(tmp_path / "model.tar", "w") as archive:
        member = tarfile.TarInfo("../escaped.safetensors")
        archive.addfile(member, io.BytesIO())
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("../escaped.safetensors", b"")
    (tmp_path / "renamed.safetensors").write_bytes((tmp_path / "model.tar").read_bytes())
    before = sorted(tmp_path.parent.rglob("*"))
    for name in ("model.tar", "model.zip", "renamed.safetensors"):
        assert f"cannot import {tmp_path / name}: " in refusal(tmp_path / name)
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_a_length_that_looks_like_a_pickle(tmp_path):
    """A header of 640 bytes begins as protocol 2 does."""
    save_file(A, tmp_path / WEIGHTS_FILE)
    content = (tmp_path / WEIGHTS_FILE).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].ljust(640)
    (tmp_path / WEIGHTS_FILE).write_bytes((640).to_bytes(8, "little") + header + content[8 + length :])
    assert (tmp_path / WEIGHTS_FILE).read_bytes()[:2] == pickle.dumps(0, protocol=2)[:2]
    np.testing.assert_array_equal(open_weights(tmp_path)["a"].read("a"), A["a"])


def test_what_is_no_checkpoint(tmp_path):
    assert "mhsh downloads nothing" in refusal(tmp_path / "bert-base-uncased")
    assert f"holds neither {WEIGHTS_FILE} nor {INDEX_FILE}" in refusal(tmp_path)
    (tmp_path / WEIGHTS_FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 440449768\n")
    assert "git lfs pull" in refusal(tmp_path)
    (tmp_path / "notes.md").write_text("weights")
    assert "mhsh opens safetensors alone" in refusal(tmp_path / "notes.md")
