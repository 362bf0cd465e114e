"""What a run is: frozen dataclasses, and `regroup`, which trades heads against depth."""

from __future__ import annotations

import dataclasses
from typing import Any

from mhsh.errors import UserError

OBJECTIVES = ("mlm", "clm", "translation", "classification", "span")
POSITIONS = ("learned", "sinusoidal")
RESIDUALS = ("post_ln", "pre_ln", "admin", "deepnorm", "rezero")
ADMIN_OMEGAS = ("profiled", "closed_log", "closed_one")
INITS = ("bert", "xavier")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("auto", "none", "dots", "dots_no_batch", "full", "groups")
KERNELS = ("auto", "plain", "fused")
TOKENIZERS = ("wordpiece", "bytes")
TRANSLATION_TOKENIZERS = ("bpe", "unigram")
LAYOUTS = ("packed", "bucketed")
OPTIMIZERS = ("adamw", "lamb", "radam")
SCHEDULES = ("linear", "constant", "inverse_sqrt")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape and the mathematics of one Transformer; letters as in docs/design.md."""

    # mlm: predict masked tokens; clm: predict the next token; translation: an encoder and a
    # decoder; classification: a class or a number for a row; span: where in a row the answer starts
    # and ends
    objective: str
    vocab_size: int  # V, rows of the embedding table; at least the tokenizer's vocabulary
    max_positions: int  # rows of the position table
    positions: str  # learned, or the fixed sines of Vaswani et al. 2017
    num_token_types: int  # rows of the token-type table; 0 leaves it out
    next_sentence: bool  # whether the pooler and the next-sentence head exist (mlm only)
    num_classes: int  # of the classification; 1: a regression; 0 with every other objective
    num_layers: int  # L, of the encoder
    num_decoder_layers: int  # of the decoder; 0 where there is none (all but translation)
    num_heads: int  # N, heads in one layer
    head_dim: int  # H, explicit: N * H need not equal D
    embed_dim: int  # D
    mlp_dim: int  # F
    activation: str
    residual: str
    admin_omega: str  # how Admin's omega starts; read only where residual is admin
    init: str
    hidden_dropout: float
    attention_dropout: float
    mlp_dropout: float  # after the activation of the feed-forward sublayer
    embedding_dropout: float
    layer_norm_epsilon: float
    compute_dtype: str
    residual_dtype: str
    remat_policy: str  # what the backward pass finds saved; auto: the fastest that fits the device
    kernels: str  # of the encoder's sublayers: plain, fused where there is a fused one, or auto: fused on devices that gain by it
    scan_unroll: int


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which text, how it becomes tokens, and how tokens become rows."""

    source: str  # stdlib, text:GLOB (plain, .gz, .xz), tfds:NAME, or arrayrecord:DIR
    tokenizer: str
    vocab_path: str  # a vocab.txt to load; empty: trained on the source's training documents
    lowercase: bool
    sequence_length: int  # T, tokens in a row
    max_predictions: int  # P, the fixed number of predicted positions a row (mlm)
    mask_fraction: float  # share of a row's tokens that are predicted (mlm)
    whole_word_masking: bool
    validation_fraction: float  # share of the documents held out
    seed: int  # of document split, row order and masking


@dataclasses.dataclass(frozen=True)
class TranslationDataConfig:
    """Which sentence pairs, how they become tokens, and how tokens become rows."""

    source: str  # numbers, text:SOURCE_GLOB,TARGET_GLOB, tfds:NAME or arrayrecord:DIR
    validation_source: str  # as source; empty: pairs of `source` held out by validation_fraction, or its own held-out part
    tokenizer: str
    vocab_path: str  # a vocabulary to load; empty: the one prepared with the rows, or learnt from the training pairs
    sequence_length: int  # S = T, tokens in a row of each side; the longest sentence kept, its end mark included
    layout: str  # packed: several pairs in a row; bucketed: one pair a row, rows of like length together
    max_length_ratio: float  # pairs whose sides differ more in tokens are left out
    validation_fraction: float  # share of the pairs held out where validation_source is empty
    validation_sentences: int  # of the validation pairs, translated and scored at every evaluation; 0: none
    seed: int  # of held-out pairs and row order


@dataclasses.dataclass(frozen=True)
class ClassificationDataConfig:
    """Which of GLUE's tasks, and how its examples become rows."""

    task: str  # cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli
    source: str  # tsv:DIR, with the original files in a folder a task, or tfds:glue[:VERSION], as TFDS has prepared them
    vocab_path: str  # the WordPiece vocabulary that the encoder was pre-trained with
    lowercase: bool
    sequence_length: int  # T; where the texts do not fit, the longer one is cut
    seed: int  # of row order

    tokenizer = "wordpiece"  # no choice, and no field


@dataclasses.dataclass(frozen=True)
class SpanDataConfig:
    """Which questions, and how a question and a part of its context become a row."""

    source: str  # json:FILE, in SQuAD's form, or tfds:NAME, such as tfds:squad/v2.0 or tfds:squad/v2.0:train[:10%]
    validation_source: str  # as source; empty: articles of `source` held out by validation_fraction
    validation_fraction: float  # share of the articles held out where validation_source is empty
    vocab_path: str  # the WordPiece vocabulary that the encoder was pre-trained with
    lowercase: bool
    sequence_length: int  # T
    stride: int  # tokens of context from one window's start to the next one's
    max_question_length: int  # tokens; longer questions are cut
    seed: int  # of held-out articles and row order

    tokenizer = "wordpiece"  # no choice, and no field


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    name: str
    learning_rate: float
    schedule: str  # after the warm-up: linear to end_learning_rate after the last step, constant, or falling as step ** -0.5
    end_learning_rate: float  # of the linear schedule, 0 for the others
    warmup_steps: int
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float  # of the global gradient norm; 0: no clipping


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How long, how much at once, and what is written when."""

    seed: int  # of initialisation and dropout
    start_from: str  # a run folder whose parameters training starts from, but for heads that it lacks; empty: fresh ones
    keep_moments: bool  # of that run also the optimiser's moments, and how many updates they have seen
    num_steps: int
    batch_size: int  # B, rows of data.sequence_length of one step over all devices; shorter rows are more by as much
    label_smoothing: float  # share of the target probability that is spread evenly over the vocabulary
    accumulation_steps: int  # micro-batches that one step is cut into
    log_interval: int
    eval_interval: int  # 0: only after the last step
    eval_batches: int  # validation batches per evaluation; 0: all of them
    checkpoint_interval: int  # 0: only after the last step
    keep_checkpoints: int
    keep_every: int  # checkpoints at multiples of this step are kept for good; 0: none
    max_skipped_steps: int  # so many steps in a row with a non-finite loss or gradient end the run
    hang_seconds: int  # a step, evaluation batch or save that takes longer ends the process with its stacks; 0: never


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis; -1 on one axis: whatever the others leave."""

    data: int
    fsdp: int
    tensor: int


AnyDataConfig = DataConfig | TranslationDataConfig | ClassificationDataConfig | SpanDataConfig


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything a run is made of; `config.json` is this, and a restore reads nothing else."""

    model: ModelConfig
    data: AnyDataConfig  # of the kind that model.objective asks for
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig


def regroup(model: ModelConfig, heads_per_layer: int) -> ModelConfig:
    """The same heads stacked in depth, in both stacks: L' = L N / n, N' = n, F' = F n / N; H and D
    unchanged.

    Source: Liu, Liu and Han, arXiv 2106.09650, section 3 (the shapes of their single-head models).

    Raises:
      UserError: n does not divide N, or N does not divide F n.
    """
    n, num_heads = heads_per_layer, model.num_heads
    if n < 1 or num_heads % n:
        raise UserError(
            f"model.heads_per_layer = {n} does not divide model.num_heads = {num_heads}; "
            f"allowed: {', '.join(str(d) for d in range(1, num_heads + 1) if num_heads % d == 0)}"
        )
    if (model.mlp_dim * n) % num_heads:
        raise UserError(
            f"model.heads_per_layer = {n}: the feed-forward width {model.mlp_dim} x {n} is not divisible by "
            f"model.num_heads = {num_heads}; choose another model.mlp_dim"
        )
    return dataclasses.replace(
        model,
        num_layers=model.num_layers * num_heads // n,
        num_decoder_layers=model.num_decoder_layers * num_heads // n,
        num_heads=n,
        mlp_dim=model.mlp_dim * n // num_heads,
    )


def rows_in_batch(config: Config, length: int | None = None) -> int:
    """B of a batch whose rows have `length` tokens (None: data.sequence_length): every batch has as
    many places.
    """
    return config.train.batch_size * config.data.sequence_length // (length or config.data.sequence_length)


def to_dict(config: Config) -> dict[str, Any]:
    """The plain nested dictionary that `config.json` holds."""
    return dataclasses.asdict(config)
