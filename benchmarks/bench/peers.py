"""PyTorch as a candidate: its peers, their model, and whether it does the same work as mhsh."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import jax

from mhsh.bench.timing import CONFIG, cores
from mhsh.config.schema import Config
from mhsh.config.shapes import shape_name
from mhsh.errors import UserError, install_command
from mhsh.models.costs import parameter_counts

# How torch runs the model: operation by operation; compiled as a whole; or each layer compiled, one
# program for all layers ("regional compilation"), without which deep models compile for hours.
TORCH_PEERS = ("torch-eager", "torch-compile", "torch-compile-layers")

# Peers have LN(x + f(x)); these schemes differ from it only by omega or a constant.
PEER_RESIDUALS = ("post_ln", "admin", "deepnorm")
PEER_PARTS = dict(qk_norm=False, num_kv_heads=0, mlp="plain", bias=True, norm="layer", head="bert")
PEER_OBJECTIVES = ("mlm", "clm")

# The peers of every kind of bench.
PEERS = {
    "train": TORCH_PEERS,
    "inference": TORCH_PEERS,
    "input": ("collator", "collator-of-ids", "loader"),
    "decode": ("marian", "marian-sorted", "gpt2"),
    "compile": (),
}


def parse_peers(peers: str | None, allowed: Sequence[str]) -> list[str]:
    """The peers of --peer, in its order.

    Raises:
      UserError: one of them does not exist, or is named twice.
    """
    names = [name.strip() for name in peers.split(",")] if peers is not None else []
    for index, name in enumerate(names):
        if name not in allowed:
            raise UserError(f"--peer={peers}: unknown peer {name!r}; allowed: {', '.join(allowed)}")
        if name in names[:index]:
            raise UserError(f"--peer={peers} names {name} twice; name it once")
    return names


def require(peers: Sequence[str]) -> None:
    """Prepares for `peers`, if there are any. Must be called before jax starts its backend.

    Raises:
      UserError: torch or transformers is not installed.
    """
    for module in ("torch", "transformers") if peers else ():
        if importlib.util.find_spec(module) is None:
            raise UserError(f"--peer={','.join(peers)} needs {module}: {install_command('parity')}, or leave --peer out")
    if peers:
        # So that XLA leaves memory to torch.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def check_config(flag: str, config: Config, *, training: bool) -> None:
    """Raises UserError where no peer can do the work of this config."""
    model, optimizer = config.model, config.optimizer
    if model.objective not in PEER_OBJECTIVES:
        allowed = ", ".join(PEER_OBJECTIVES)
        raise UserError(f"--{flag}: model.objective = {model.objective!r} has no torch peer; allowed with --peer: {allowed}")
    if model.residual not in PEER_RESIDUALS:
        allowed = ", ".join(PEER_RESIDUALS)
        raise UserError(f"--{flag}: model.residual = {model.residual!r} has no torch peer; allowed with --peer: {allowed}")
    for name, plain in PEER_PARTS.items():
        if getattr(model, name) != plain:
            found = f"model.{name} = {getattr(model, name)!r}"
            raise UserError(f"--{flag}: {found} has no torch peer; add --{flag}.model.{name}={plain}")
    if model.positions == "rotary":
        raise UserError(f"--{flag}: model.positions = 'rotary' has no torch peer; add --{flag}.model.positions=learned")
    if training and optimizer.name != "adamw":
        raise UserError(f"--{flag}: peers train with AdamW; add --{flag}.optimizer.name=adamw")
    # Several CPU devices are the cores of one machine, which the peer has too.
    if jax.device_count() > 1 and training and jax.devices()[0].platform != "cpu":
        raise UserError(f"peers train on one device, jax has {jax.device_count()} here; show it one (CUDA_VISIBLE_DEVICES=0)")


def check_decoding(config: Config, peers: Sequence[str]) -> None:
    """Raises UserError where Marian or GPT-2 cannot have the shape of this config."""
    model = config.model
    for peer in peers:
        name, objective, residual, positions = (
            ("GPT-2", "clm", "pre_ln", "learned") if peer == "gpt2" else ("Marian", "translation", "post_ln", "sinusoidal")
        )
        unfit = {
            "model.objective": (model.objective, objective, f"what {name} does"),
            "model.embed_dim": (model.embed_dim, model.num_heads * model.head_dim, "model.num_heads x model.head_dim"),
            "model.residual": (model.residual, residual, f"what {name} has"),
            "model.positions": (model.positions, positions, f"what {name} has"),
            **{f"model.{part}": (getattr(model, part), plain, f"what {name} has") for part, plain in PEER_PARTS.items()},
        }
        if name == "Marian":
            unfit["model.num_decoder_layers"] = (model.num_decoder_layers, model.num_layers, "model.num_layers")
        for field, (value, wanted, what) in unfit.items():
            if value != wanted:
                raise UserError(f"--peer={peer}: {field} = {value!r} must be {wanted!r}, {what}; set it, or leave --peer out")


def device() -> Any:
    """torch's device for the one that jax computes on; sets torch up for it.

    Raises:
      UserError: torch cannot use it.
    """
    import torch  # pyrefly: ignore[missing-import]

    platform = jax.devices()[0].platform
    if platform == "cpu":
        torch.set_num_threads(cores())
        return torch.device("cpu")
    if platform != "gpu":
        raise UserError(f"--peer: torch has no device of the platform {platform!r} that jax computes on; leave --peer out")
    if not torch.cuda.is_available():
        raise UserError(f"--peer: jax computes on a GPU, torch {torch.__version__} finds none; install torch with CUDA")
    # XLA multiplies fp32 matrices in TF32 there by default, torch does not.
    torch.set_float32_matmul_precision("high")
    return torch.device("cuda")


def torch_environment() -> dict[str, Any]:
    """The facts on torch in the results: versions, threads, device and precision of products."""
    import torch  # pyrefly: ignore[missing-import]

    where = device()
    return {
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if where.type == "cuda" else "cpu",
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def fits_transformers(config: Config) -> bool:
    """Whether BERT of transformers can have this shape.

    It has N H = D, learned positions, token types, no dropout inside the feed-forward sublayer and
    no causal mask.
    """
    model = config.model
    plain = model.positions == "learned" and model.num_token_types > 0 and model.mlp_dropout == 0
    return plain and model.objective == "mlm" and model.num_heads * model.head_dim == model.embed_dim


def build(config: Config) -> tuple[Any, str]:
    """A torch module of the config's shape (fp32, on the CPU) and its title.

    It is transformers' BERT where that fits, else PlainTransformer. Both map a batch to logits and
    next-sentence logits (or None), and project only the predicted positions on the vocabulary.

    Raises:
      UserError: its number of parameters is not that of the config's model without omega.
    """
    import torch  # pyrefly: ignore[missing-import]

    torch.manual_seed(config.train.seed)
    if fits_transformers(config):
        from benchmarks.bench.modules import TransformersBert as Module
    else:
        from benchmarks.bench.modules import PlainTransformer as Module
    module = Module(config.model)
    built, counts = sum(values.numel() for values in module.parameters()), parameter_counts(config.model)
    if built != counts["total"] - counts["omega"]:
        raise UserError(
            f"the peer {module.title} has {built:,} parameters, mhsh's model without omega {counts['total'] - counts['omega']:,}: "
            "their work is not the same, so their times cannot be compared"
        )
    return module, module.title


def facts(config: Config, name: str, title: str) -> dict[str, Any]:
    """Fields of a CandidateResult for a peer of the config called `name`, but FLOPs and memory."""
    counts = parameter_counts(config.model)
    return {
        "config": name,
        "implementation": title,
        "dtype": config.model.compute_dtype,
        "devices": 1,
        "parameters": counts["total"] - counts["omega"],
        "omega": 0,
    }


def peer_name(peer: str, name: str) -> str:
    """The name of a peer of the config called `name`."""
    return peer if name == CONFIG else f"{peer} ({name})"


def label(config: Config, title: str, peer: str) -> str:
    """transformers BertForPreTraining 12x12 bfloat16, torch-compile."""
    model = config.model
    return f"{title} {shape_name(model)} {model.compute_dtype}, {peer}"
