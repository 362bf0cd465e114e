"""Standard decoders: against transformers on PyTorch (parity), and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from mhsh.config.schema import ModelConfig
from mhsh.data.wordpiece import ByteTokenizer
from mhsh.errors import UserError
from mhsh.interop.llama import LlamaConfig, export_llama, import_llama, is_llama
from mhsh.interop.vocabulary import read_tokenizer, write_tokenizer
from tests.interop.small_bert import LENGTH, outputs, same, small_tokenizer, trained_params
from tests.interop.small_llama import small_model

# Absolute, on logits of size 1 to 10, as of BERT's plain export. transformers computes in fp64: in
# fp32 it is off by 1.1e-5 itself in the deepest model.
EXACT = 1e-5

SHAPES = {
    "heads": {},
    "shared": dict(num_kv_heads=2),
    "one for all": dict(num_kv_heads=1, head_dim=6, head="untied"),
    "deep": dict(num_layers=24, num_heads=1, mlp_dim=5),
    "theta": dict(rope_theta=1_000_000.0, activation="gelu_tanh", head="untied"),
}
NORMED = {False: {}, True: dict(qk_norm=True)}


def logits(model: ModelConfig, params: Any, tokens: np.ndarray) -> np.ndarray:
    everywhere = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    batch = {"inputs": tokens, "inputs_position": everywhere, "inputs_segmentation": np.ones_like(tokens)}
    return np.asarray(outputs(model, params, batch).logits)


def random_tokens(model: ModelConfig) -> np.ndarray:
    return np.random.default_rng(0).integers(0, model.vocab_size, (3, LENGTH)).astype(np.int32)


def exported(folder: Path, model: ModelConfig, params: Any) -> Path:
    folder.mkdir()
    export_llama(folder, model, params, ByteTokenizer())
    return folder


@pytest.fixture
def torch() -> Any:
    pytest.importorskip("transformers")
    return pytest.importorskip("torch")


def loaded(folder: Path) -> Any:
    """The model of transformers that loads all of a folder, in fp64."""
    import transformers

    there, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    return there.eval().double()


@pytest.mark.parity
@pytest.mark.parametrize("qk_norm", NORMED)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_exported_model_computes_the_same_in_transformers(tmp_path, torch, shape, qk_norm):
    model = small_model(**SHAPES[shape], **NORMED[qk_norm])
    params, tokens = trained_params(model), random_tokens(model)
    there = loaded(exported(tmp_path / "out", model, params))
    assert type(there).__name__ == ("Qwen3ForCausalLM" if qk_norm else "LlamaForCausalLM")
    with torch.no_grad():
        wanted = there(input_ids=torch.from_numpy(tokens)).logits.numpy()
    assert 0.5 < np.abs(wanted).max() < 30
    difference = np.abs(logits(model, params, tokens) - wanted).max()
    print(f"{shape} qk_norm={qk_norm}: {difference:.1e}")  # for docs/interop.md
    assert difference < EXACT


@pytest.mark.parity
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "kv_heads"), [("Llama", 4), ("Llama", 2), ("Qwen3", 1)])
def test_a_model_of_transformers_is_imported_and_comes_back(tmp_path, torch, kind, kv_heads, tied):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=41,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=6,
        max_position_embeddings=32,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    there = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for values in there.parameters():
            values.normal_(0.0 if values.ndim == 2 else 1.0, values.shape[-1] ** -0.5 if values.ndim == 2 else 0.2)
    there.save_pretrained(tmp_path / "there")
    there = there.double()
    imported = import_llama(tmp_path / "there", small_model())
    model, tokens = imported.model, random_tokens(imported.model)
    assert (model.kv_heads, model.rope_theta, model.head, model.qk_norm) == (
        kv_heads,
        5000.0,
        "tied" if tied else "untied",
        kind == "Qwen3",
    )
    with torch.no_grad():
        wanted = there(input_ids=torch.from_numpy(tokens)).logits.numpy()
    assert np.abs(wanted).max() > 0.5
    assert np.abs(logits(model, imported.params, tokens) - wanted).max() < EXACT
    again = exported(tmp_path / "again", model, imported.params)
    assert same(load_file(tmp_path / "there" / "model.safetensors"), load_file(again / "model.safetensors"))


TEXTS = ("The numbers, going.\n", "the [SEP] of[PAD] [MASK]", "é THE [SEP Go  numbers\tof the 中国 \U0001f600", " x ")


@pytest.mark.parity
@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), small_tokenizer(), small_tokenizer(lowercase=False)])
def test_the_tokenizer_gives_the_same_ids(tmp_path, torch, tokenizer):
    import transformers

    write_tokenizer(tmp_path, tokenizer, max_positions=32)
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (there.pad_token_id, there.eos_token_id, there.model_max_length) == (tokenizer.pad_id, tokenizer.sep_id, 32)
    for text in TEXTS:
        ids = tokenizer.encode_batch([text])[0].tolist()
        assert there(text)["input_ids"] == ids
        assert there.decode(ids) == (text if isinstance(tokenizer, ByteTokenizer) else tokenizer.decode(ids))
    there.save_pretrained(tmp_path / "again")
    assert read_tokenizer(tmp_path / "again").fingerprint == tokenizer.fingerprint


def test_a_tokenizer_comes_back(tmp_path):
    for number, tokenizer in enumerate((ByteTokenizer(), small_tokenizer(), small_tokenizer(lowercase=False))):
        (folder := tmp_path / str(number)).mkdir()
        write_tokenizer(folder, tokenizer, max_positions=32)
        assert read_tokenizer(folder).fingerprint == tokenizer.fingerprint
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"pre_tokenizer": {"type": "Whitespace"}}))
    with pytest.raises(UserError, match=r"the pre_tokenizer .* is another than BERT's: .*; mhsh has bytes and BERT's WordPiece"):
        read_tokenizer(folder)
    file.unlink()
    with pytest.raises(UserError, match=r"tokenizer.json does not exist; without it the weights mean nothing"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    "fields",
    [{"residual": "admin"}, {"norm": "layer"}, {"mlp": "plain"}, {"bias": True}, {"positions": "learned"}, {"head": "bert"}],
    ids=str,
)
def test_what_no_llama_computes_is_refused_by_its_field(tmp_path, fields):
    ((name, value),) = fields.items()
    with pytest.raises(UserError, match=f"^model.{name} = {value!r} cannot be exported: no Llama or Qwen3 of .*; exportable: "):
        export_llama(tmp_path, small_model(**fields), None, ByteTokenizer())
    with pytest.raises(UserError, match=r"^model.num_heads = 5 cannot be exported: .* model.embed_dim = 12"):
        export_llama(tmp_path, small_model(num_heads=5), None, ByteTokenizer())
    assert not list(tmp_path.iterdir())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"attention_bias": True}, "attention_bias"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0}}, "rope_parameters.rope_type"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling.type"),
    ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
    ({"num_hidden_layers": 3}, "the tensor model.layers.2.input_layernorm.weight is missing"),
    ({"num_hidden_layers": 1}, r"no parameter is made of the tensor model.layers.1.input_layernorm.weight \(9 such\)"),
    ({"intermediate_size": 21}, r"mlp.gate_proj.weight is \[20, 12\], by config.json it is \[21, 12\]"),
    ({"model_type": "qwen3"}, "self_attn.q_norm.weight is missing"),
    ({"tie_word_embeddings": False}, "the tensor lm_head.weight is missing"),
]


def test_config_and_tensors_must_be_of_one_model(tmp_path):
    model = small_model(num_kv_heads=2)
    folder = exported(tmp_path / "out", model, trained_params(model))
    content = json.loads((folder / "config.json").read_text())
    for changes, said in REFUSED:
        (folder / "config.json").write_text(json.dumps(content | changes))
        with pytest.raises(UserError, match=said) as caught:
            import_llama(folder, small_model())
        assert "\n" not in str(caught.value)
    # As older versions of transformers write it.
    old = {name: value for name, value in content.items() if name not in ("rope_parameters", "head_dim", "tie_word_embeddings")}
    (folder / "config.json").write_text(json.dumps(old | {"rope_theta": 7.0, "head_dim": 4, "tie_word_embeddings": True}))
    tensors = load_file(folder / "model.safetensors")
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    save_file(tensors | frequencies | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, folder / "model.safetensors")
    imported = import_llama(folder, small_model())
    assert imported.model == replace(model, rope_theta=7.0) and imported.left_out == tuple(frequencies)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"the tensor lm_head.weight differs from model.embed_tokens.weight"):
        import_llama(folder, small_model())


@pytest.mark.parametrize("model_type", [["llama"], {}, None, 3, "bert"])
def test_a_model_type_of_any_kind_is_no_llama(tmp_path, model_type):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert not is_llama(tmp_path)


@pytest.mark.parametrize(
    ("sections", "theta"),
    [
        ({"rope_scaling": {"rope_type": "default", "rope_theta": 7.0}}, 7.0),
        ({"rope_scaling": {"rope_theta": 7.0}, "rope_theta": 5.0, "rope_parameters": {"rope_theta": 3.0}}, 7.0),
        ({"rope_scaling": {"type": "default"}, "rope_theta": 5.0}, 5.0),
        ({"rope_scaling": None, "rope_theta": 5.0, "rope_parameters": {"rope_theta": 3.0}}, 3.0),
    ],
)
def test_the_angles_are_read_where_transformers_reads_them(sections, theta):
    sizes = "vocab_size max_position_embeddings num_hidden_layers num_attention_heads hidden_size intermediate_size"
    content: dict[str, Any] = dict.fromkeys(sizes.split(), 4) | {"model_type": "llama", "hidden_act": "silu"} | sections
    assert msgspec.convert(content, LlamaConfig).fields["rope_theta"] == theta
