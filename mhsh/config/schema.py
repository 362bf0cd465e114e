"""The schema of a run: every field of a config once, with its type, default, bounds, meaning and
role.

    num_layers: Annotated[Count, shape("L, layers of the encoder")] = 6

Everything else reads it here: the config files (`mhsh.configs.base`), the checks of
`mhsh.config.resolve`, `mhsh configs`, the axes of a sweep and the fairness ledger of a comparison.

A field that is added later says since which SCHEMA_VERSION it is there, and which of its values is
what mhsh did before, so that older run folders still open (`mhsh.config.recorded`):

    logit_cap: Annotated[NonNegativeFloat, loss("...", "task", since=2, before=0.0)] = 30.0
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

# Goes up by one with every change that adds, renames or removes a field or one of its values.
SCHEMA_VERSION = 7

# What a difference in a field does to a comparison of two runs.
Role = Literal["shape", "loss", "clock", "bookkeeping"]
ROLES: Mapping[Role, str] = {
    "shape": "it is what is compared",
    "loss": "the losses are not at equal conditions",
    "clock": "device seconds are not comparable",
    "bookkeeping": "nothing; what lies at a path is compared by its fingerprint",
}

# Where the fairness ledger shows a field, in the ledger's order.
Row = Literal[
    "data seed (split, order, masking)",
    "rows of data",
    "task",
    "initialisation",
    "activation and LayerNorm",
    "learning-rate schedule",
    "update rule",
    "steps and batch",
    "dropout",
    "precision",
    "validation batches",
    "attention and rematerialisation",
    "micro-batches",
    "start",
    "training seed",
    "mesh",
]


def field_meta(
    role: Role, doc: str, row: Row | None = None, *, since: int = 1, before: int | float | bool | str | None = None
) -> Meta:
    """The metadata of a field besides its type, bounds and default. `since` names the version of
    the schema that it came with, `before` the value that stands for what mhsh did until then.
    """
    return Meta(description=doc, extra={"role": role, "row": row, "since": since, "before": before})


shape = functools.partial(field_meta, "shape")
loss = functools.partial(field_meta, "loss")
clock = functools.partial(field_meta, "clock")
bookkeeping = functools.partial(field_meta, "bookkeeping")

# The fields of one row of the ledger.
definition = functools.partial(loss, row="task")
initialisation = functools.partial(loss, row="initialisation")
dropout = functools.partial(loss, row="dropout")
precision = functools.partial(loss, row="precision")
data_rows = functools.partial(loss, row="rows of data")
data_seed = functools.partial(loss, row="data seed (split, order, masking)")
rate_schedule = functools.partial(loss, row="learning-rate schedule")
update_rule = functools.partial(loss, row="update rule")
updates = functools.partial(loss, row="steps and batch")
start = functools.partial(loss, row="start")
execution = functools.partial(clock, row="attention and rematerialisation")
mesh_axis = functools.partial(clock, row="mesh")

Count = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
MeshAxis = Annotated[int, Meta(ge=-1, extra={"allowed": "1 or more, or -1 for the rest"})]  # resolve.py refuses 0

Streams = Annotated[int, Meta(ge=1, le=6, extra={"allowed": "1 to 6"})]

Objective = Literal["mlm", "clm", "translation", "classification", "span"]
AdminOmega = Literal["profiled", "closed_log", "closed_one"]
Init = Literal["bert", "xavier", "fairseq"]
Fans = Literal["ungrouped", "own"]
Dtype = Literal["float32", "bfloat16"]

OBJECTIVES: tuple[str, ...] = get_args(Objective)
TASKS = ("classification", "span")  # of fine-tuning


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a config. Its constructor checks nothing: `mhsh.config.resolve.from_dict` does."""


class ModelConfig(Section, frozen=True):
    """The shape and the mathematics of one Transformer; letters as in docs/design.md."""

    objective: Annotated[
        Objective,
        definition(
            "mlm: predict masked tokens; clm: predict the next token; translation: an encoder and a decoder; "
            "classification: a class or a number for a row; span: where in a row the answer starts and ends"
        ),
    ] = "clm"
    # 256 bytes and 5 special tokens, rounded up to a multiple of 8.
    vocab_size: Annotated[Count, definition("V, rows of the embedding table; at least the tokenizer's vocabulary")] = 264
    max_positions: Annotated[Count, shape("tokens of the longest row; rows of the position table, where there is one")] = 128
    positions: Annotated[
        Literal["learned", "sinusoidal", "rotary"],
        shape("a table, learned or of the fixed sines of Vaswani et al. 2017; or queries and keys rotated (RoPE; clm only)"),
    ] = "learned"
    rope_theta: Annotated[Positive, shape("base of the wavelengths of rotary positions, 2 pi to about 2 pi rope_theta")] = 10_000.0
    num_token_types: Annotated[NonNegative, shape("rows of the token-type table; 0 leaves it out")] = 0
    next_sentence: Annotated[bool, definition("whether the pooler and the next-sentence head exist (mlm only)")] = False
    num_classes: Annotated[
        NonNegative, definition("classes of a classification; 1: a regression; 0 with every other objective")
    ] = 0
    num_layers: Annotated[Count, shape("L, layers of the encoder")] = 6
    num_decoder_layers: Annotated[NonNegative, shape("layers of the decoder; 0 where there is none (all but translation)")] = 0
    loops: Annotated[Count, shape("passes over the layers of a stack, the same in each; 1: each layer once", since=4, before=1)] = 1
    num_heads: Annotated[Count, shape("N, heads in one layer")] = 4
    num_kv_heads: Annotated[NonNegative, shape("G, heads of keys and values in one layer; 0: N (others: clm only)")] = 0
    head_dim: Annotated[Count, shape("H, width of one head; N * H need not equal D")] = 32
    embed_dim: Annotated[Count, shape("D, width of the residual stream")] = 128
    mlp_dim: Annotated[Count, shape("F, width of the feed-forward sublayer")] = 512
    mlp: Annotated[Literal["plain", "gated"], shape("gated: times the activation of a third product (clm only)")] = "plain"
    activation: Annotated[
        Literal["gelu", "gelu_tanh", "relu", "silu"],
        loss("between the products of the feed-forward sublayer", "activation and LayerNorm"),
    ] = "gelu_tanh"
    bias: Annotated[bool, shape("whether the layers' products and LayerNorms add biases (without: clm only)")] = True
    norm: Annotated[Literal["layer", "rms"], shape("every LayerNorm; rms: without mean and bias (clm only)")] = "layer"
    head: Annotated[
        Literal["bert", "tied", "untied"],
        shape(
            "bert: LayerNorm over the embeddings, a dense layer before the token table; tied: the token table alone; untied: a "
            "matrix of its own (both clm only)"
        ),
    ] = "bert"
    residual: Annotated[str, shape("how a sublayer joins the residual stream: docs/design.md, section 2, or your own")] = "admin"
    admin_omega: Annotated[AdminOmega, shape("how omega starts; profiled failed in large steps (configs/bert.py)")] = "profiled"
    depth_exponent: Annotated[NonNegativeFloat, shape("a in (L0 / L)^a; read only where model.residual is completep")] = 1.0
    base_layers: Annotated[NonNegative, shape("L0 of completep, where the rate was tuned; 0: L, or what regrouping began with")] = 0
    residual_blocks: Annotated[Count, shape("most blocks of sublayers; read only with block_attn_res", since=4, before=8)] = 8
    residual_streams: Annotated[Streams, shape("parallel streams; read only with mhc_lite", since=4, before=4)] = 4
    qk_norm: Annotated[bool, shape("whether each head's queries and keys have a LayerNorm")] = False
    init: Annotated[
        Init, initialisation("bert: deviation 0.02; xavier: by fans; fairseq: so, with queries, keys and values as one matrix")
    ] = "xavier"
    fans: Annotated[Fans, initialisation("of xavier and fairseq: those before regrouping, or each layer's own")] = "ungrouped"
    layers_per_group: Annotated[Positive, shape("layers that regrouping made of one; the factor of `ungrouped` fans")] = 1.0
    hidden_dropout: Annotated[Fraction, dropout("after each sublayer")] = 0.0
    attention_dropout: Annotated[Fraction, dropout("of the attention weights")] = 0.0
    mlp_dropout: Annotated[Fraction, dropout("after the activation of the feed-forward sublayer")] = 0.0
    embedding_dropout: Annotated[Fraction, dropout("of the embeddings")] = 0.0
    layer_norm_epsilon: Annotated[Positive, loss("added to the variance in every LayerNorm", "activation and LayerNorm")] = 1e-5
    compute_dtype: Annotated[Dtype, precision("of matrix products and activations; parameters are float32")] = "float32"
    residual_dtype: Annotated[Dtype, precision("of the residual stream")] = "float32"
    kernels: Annotated[
        Literal["auto", "xla", "fused", "mosaic"],
        execution(
            "of training: fused, mhsh's own on NVIDIA GPUs, where they cover the model; mosaic, the same, but Mosaic GPU compiles "
            "those around a sublayer (H100 and later); xla; auto: xla",
            since=5,
            before="auto",
        ),
    ] = "auto"
    remat_policy: Annotated[
        Literal["auto", "none", "projections", "dots", "dots_no_batch", "full", "groups", "gathered_groups"],
        execution("what the forward pass keeps for the backward pass; auto: the fastest policy that fits the device"),
    ] = "none"
    scan_unroll: Annotated[NonNegative, execution("layers in one iteration of the layer scan; 0: 4 on GPUs, else 1")] = 0

    @property
    def kv_heads(self) -> int:
        """G, heads of keys and values in one layer; each is for N / G heads of queries."""
        return self.num_kv_heads or self.num_heads


class DataConfig(Section, frozen=True):
    """Which text, how it becomes tokens, and how tokens become rows."""

    source: Annotated[
        str,
        bookkeeping("what is read, such as text:corpus/*.txt: see the sources; globs and folders may be in a bucket (gs://)"),
    ] = "stdlib"
    tokenizer: Annotated[Literal["wordpiece", "bytes"], data_rows("how text becomes tokens")] = "bytes"
    vocab_path: Annotated[str, bookkeeping("a vocab.txt to load; empty: trained on the source's training documents")] = ""
    lowercase: Annotated[bool, data_rows("whether the tokenizer lowers case and strips accents")] = False
    sequence_length: Annotated[Count, data_rows("T, tokens in a row")] = 128
    max_predictions: Annotated[NonNegative, data_rows("P, the fixed number of predicted positions a row (mlm)")] = 0
    mask_fraction: Annotated[Fraction, data_rows("share of a row's tokens that are predicted (mlm)")] = 0.0
    validation_fraction: Annotated[Fraction, data_rows("share of the documents held out")] = 0.05
    seed: Annotated[NonNegative, data_seed("of document split, row order and masking")] = 0


class TranslationDataConfig(Section, frozen=True):
    """Which sentence pairs, and how they become rows of tokens, several pairs in a row; the sides
    share one vocabulary.
    """

    tokenizer: ClassVar[str] = "bpe"  # no choice, and no field

    source: Annotated[str, bookkeeping("numbers, text:SOURCE_GLOB,TARGET_GLOB, tfds:NAME or arrayrecord:DIR; gs:// too")] = (
        "tfds:wmt14_translate/de-en"
    )
    validation_source: Annotated[
        str, bookkeeping("as source; empty: pairs of `source` held out by validation_fraction, or its own held-out part")
    ] = "tfds:wmt14_translate/de-en:validation"
    vocab_path: Annotated[
        str, bookkeeping("a vocabulary to load; empty: the one prepared with the rows, or learnt from the training pairs")
    ] = ""
    sequence_length: Annotated[Count, data_rows("S = T, tokens in a row of each side, and in the longest sentence kept")] = 256
    max_length_ratio: Annotated[float, Meta(ge=1), data_rows("pairs whose sides differ more in tokens are left out")] = 1.5
    validation_fraction: Annotated[Fraction, data_rows("share of the pairs held out where validation_source is empty")] = 0.01
    validation_sentences: Annotated[NonNegative, data_rows("validation pairs translated and scored at an evaluation; 0: none")] = 0
    seed: Annotated[NonNegative, data_seed("of held-out pairs and row order")] = 0


class ClassificationDataConfig(Section, frozen=True):
    """Which of GLUE's tasks, and how its examples become rows."""

    tokenizer: ClassVar[str] = "wordpiece"  # no choice, and no field

    task: Annotated[str, data_rows("cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli")] = "cola"
    source: Annotated[str, bookkeeping("tsv:DIR (gs:// too), with GLUE's original files in a folder a task")] = "tsv:GLUE"
    vocab_path: Annotated[str, bookkeeping("the WordPiece vocabulary that the encoder was pre-trained with")] = "vocab.txt"
    lowercase: Annotated[bool, data_rows("whether the tokenizer lowers case and strips accents")] = True
    sequence_length: Annotated[Count, data_rows("T; where the texts do not fit, the longer one is cut")] = 128
    seed: Annotated[NonNegative, data_seed("of row order")] = 0


class SpanDataConfig(Section, frozen=True):
    """Which questions, and how a question and a part of its context become a row."""

    tokenizer: ClassVar[str] = "wordpiece"  # no choice, and no field

    source: Annotated[str, bookkeeping("json:FILE (gs:// too), in SQuAD's form")] = "json:train.json"
    validation_source: Annotated[str, bookkeeping("as source; empty: held out by validation_fraction")] = "json:dev.json"
    validation_fraction: Annotated[Fraction, data_rows("share of the articles held out where validation_source is empty")] = 0.1
    vocab_path: Annotated[str, bookkeeping("the WordPiece vocabulary that the encoder was pre-trained with")] = "vocab.txt"
    lowercase: Annotated[bool, data_rows("whether the tokenizer lowers case and strips accents")] = True
    sequence_length: Annotated[Count, data_rows("T, tokens in a row")] = 384
    stride: Annotated[Count, data_rows("tokens of context from one window's start to the next one's")] = 128
    max_question_length: Annotated[Count, data_rows("tokens; longer questions are cut")] = 64
    seed: Annotated[NonNegative, data_seed("of held-out articles and row order")] = 0


class OptimizerConfig(Section, frozen=True):
    """The update rule and its schedule."""

    name: Annotated[str, update_rule("adamw, lamb, radam, muon (for the layers' kernels) or one of your own")] = "adamw"
    schedule: Annotated[
        Literal["linear", "constant", "inverse_sqrt", "cosine", "wsd"],
        rate_schedule(
            "after the warm-up: linear or cosine to end_learning_rate after the last step, constant, falling as step ** -0.5, or "
            "wsd: constant until the last decay_steps"
        ),
    ] = "constant"
    decay_steps: Annotated[NonNegative, rate_schedule("last steps of wsd, which fall to end_learning_rate; 0 for the others")] = 0
    learning_rate: Annotated[Positive, rate_schedule("the highest, at the end of the warm-up")] = 2e-3
    end_learning_rate: Annotated[NonNegativeFloat, rate_schedule("of linear, cosine and wsd, 0 for the others")] = 0.0
    warmup_steps: Annotated[NonNegative, rate_schedule("steps in which the rate rises from 0")] = 100
    beta1: Annotated[Fraction, update_rule("decay of the first moment")] = 0.9
    beta2: Annotated[Fraction, update_rule("decay of the second moment")] = 0.98
    epsilon: Annotated[Positive, update_rule("added to the root of the second moment")] = 1e-8
    momentum: Annotated[Fraction, update_rule("decay of Muon's momentum; read only where optimizer.name is muon")] = 0.95
    muon_heads: Annotated[
        Literal["joined", "each"],
        update_rule("of which matrices Muon's updates are: one of all heads, or one a head; read only with muon"),
    ] = "joined"
    weight_decay: Annotated[NonNegativeFloat, update_rule("decoupled, of weights; not of biases, LayerNorms and omega")] = 0.01
    clip_norm: Annotated[NonNegativeFloat, update_rule("of the global gradient norm; 0: no clipping")] = 1.0


class TrainConfig(Section, frozen=True):
    """How long, how much at once, and what is written when."""

    seed: Annotated[NonNegative, bookkeeping("of initialisation and dropout; may differ from run to run", "training seed")] = 0
    start_from: Annotated[
        str,
        start(
            "a run folder whose parameters training starts from, but for heads that it lacks; RUN@STEP: that run's first steps "
            "are this run's; empty: fresh parameters"
        ),
    ] = ""
    keep_moments: Annotated[bool, start("of that run also the optimiser's moments, and how many updates they have seen")] = False
    num_steps: Annotated[Count, updates("updates of the parameters")] = 300
    batch_size: Annotated[Count, updates("B, rows of one step over all devices")] = 8
    label_smoothing: Annotated[Fraction, updates("share of the target spread evenly over the vocabulary")] = 0.0
    gradient_dtype: Annotated[
        Literal["compute", "float32"], precision("of kernels' gradients where devices add them up; compute: model.compute_dtype")
    ] = "compute"
    accumulation_steps: Annotated[Count, clock("micro-batches that one step is cut into", "micro-batches")] = 1
    log_interval: Annotated[Count, bookkeeping("steps from one row of metrics.jsonl to the next")] = 5
    tracker: Annotated[
        Literal["tensorboard", "wandb"],
        bookkeeping("what shows those rows too: tensorboard, by event files in the run folder; wandb, Weights & Biases"),
    ] = "tensorboard"
    eval_interval: Annotated[NonNegative, bookkeeping("steps from one evaluation to the next; 0: only after the last step")] = 50
    eval_batches: Annotated[NonNegative, loss("validation batches per evaluation; 0: all of them", "validation batches")] = 16
    checkpoint_interval: Annotated[NonNegative, bookkeeping("steps from one checkpoint to the next; 0: only after the last")] = 150
    keep_checkpoints: Annotated[Count, bookkeeping("so many of the newest checkpoints are kept")] = 2
    max_skipped_steps: Annotated[Count, bookkeeping("so many steps in a row with a non-finite loss or gradient end the run")] = 10
    profile_steps: Annotated[str, bookkeeping("FIRST:LAST, the steps that jax.profiler traces; empty: none")] = ""
    hang_seconds: Annotated[
        NonNegative, bookkeeping("a step that takes longer ends the process with status 75; 0: 20 times the longest, at least 300")
    ] = 0
    storage_minutes: Annotated[
        Positive, bookkeeping("storage that does not answer for so long ends the process with status 75", since=3, before=10.0)
    ] = 10.0


class MeshConfig(Section, frozen=True):
    """Devices along each axis; -1: those that the others leave. Where data and fsdp are both -1,
    counted bytes decide which of the two takes them (docs/plan.md).
    """

    data: Annotated[MeshAxis, mesh_axis("parts that a batch is cut into")] = -1
    fsdp: Annotated[MeshAxis, mesh_axis("parts that batch, parameters and optimiser state are cut into")] = -1
    tensor: Annotated[MeshAxis, mesh_axis("parts that heads, feed-forward width and vocabulary are cut into; one head is not")] = 1


AnyDataConfig = DataConfig | TranslationDataConfig | ClassificationDataConfig | SpanDataConfig


class Config(Section, frozen=True):
    """Everything a run is made of; `config.json` is this, and a restore reads nothing else."""

    model: ModelConfig
    data: AnyDataConfig  # of the kind that model.objective asks for: DATA_SECTIONS
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig


DATA_SECTIONS: Mapping[str, type[AnyDataConfig]] = {
    "mlm": DataConfig,
    "clm": DataConfig,
    "translation": TranslationDataConfig,
    "classification": ClassificationDataConfig,
    "span": SpanDataConfig,
}


def to_dict(config: Section) -> dict[str, Any]:
    """The plain nested dictionary of a config, as `config.json` holds it, or of a section."""
    return msgspec.to_builtins(config)
