"""What a run is: every field of a config once, with its type, bounds, meaning and role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from mhsh.config import roles

Count = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
MeshAxis = Annotated[int, Meta(ge=-1, extra={"allowed": "1 or more, or -1 for the rest"})]  # resolve.py refuses 0

Objective = Literal["mlm", "clm", "translation", "classification", "span"]
Residual = Literal["post_ln", "pre_ln", "admin", "deepnorm", "rezero", "keel", "peri_ln", "ln_scaling", "completep", "hybrid_norm"]
AdminOmega = Literal["profiled", "closed_log", "closed_one"]
Init = Literal["bert", "xavier", "fairseq"]
Fans = Literal["ungrouped", "own"]
Dtype = Literal["float32", "bfloat16"]
TranslationTokenizer = Literal["bpe", "unigram"]

OBJECTIVES: tuple[str, ...] = get_args(Objective)
RESIDUALS: tuple[str, ...] = get_args(Residual)
ADMIN_OMEGAS: tuple[str, ...] = get_args(AdminOmega)
INITS: tuple[str, ...] = get_args(Init)
TRANSLATION_TOKENIZERS: tuple[str, ...] = get_args(TranslationTokenizer)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a config. Its constructor checks nothing: `mhsh.config.resolve.from_dict` does."""


class ModelConfig(Section, frozen=True):
    """The shape and the mathematics of one Transformer; letters as in docs/design.md."""

    objective: Annotated[
        Objective,
        roles.task(
            "mlm: predict masked tokens; clm: predict the next token; translation: an encoder and a decoder; "
            "classification: a class or a number for a row; span: where in a row the answer starts and ends"
        ),
    ]
    vocab_size: Annotated[Count, roles.task("V, rows of the embedding table; at least the tokenizer's vocabulary")]
    max_positions: Annotated[Count, roles.shape("rows of the position table")]
    positions: Annotated[Literal["learned", "sinusoidal"], roles.shape("learned, or the fixed sines of Vaswani et al. 2017")]
    num_token_types: Annotated[NonNegative, roles.shape("rows of the token-type table; 0 leaves it out")]
    next_sentence: Annotated[bool, roles.task("whether the pooler and the next-sentence head exist (mlm only)")]
    num_classes: Annotated[
        NonNegative, roles.task("classes of a classification; 1: a regression; 0 with every other objective", before=0)
    ]
    num_layers: Annotated[Count, roles.shape("L, layers of the encoder")]
    num_decoder_layers: Annotated[NonNegative, roles.shape("layers of the decoder; 0 where there is none (all but translation)")]
    num_heads: Annotated[Count, roles.shape("N, heads in one layer")]
    head_dim: Annotated[Count, roles.shape("H, width of one head; N * H need not equal D")]
    embed_dim: Annotated[Count, roles.shape("D, width of the residual stream")]
    mlp_dim: Annotated[Count, roles.shape("F, width of the feed-forward sublayer")]
    activation: Annotated[
        Literal["gelu", "gelu_tanh", "relu"],
        roles.loss("between the two products of the feed-forward sublayer", "activation and LayerNorm", "changes"),
    ]
    residual: Annotated[Residual, roles.shape("how a sublayer's output joins the residual stream (docs/design.md, section 2)")]
    admin_omega: Annotated[
        AdminOmega, roles.shape("how Admin's omega starts; read only where model.residual is admin", step="same")
    ]
    depth_exponent: Annotated[
        NonNegativeFloat, roles.shape("a in (L0 / L)^a; read only where model.residual is completep", step="same", before=1.0)
    ]
    base_layers: Annotated[
        NonNegative,
        roles.shape("L0 of completep, where the rate was tuned; 0: L, or what regrouping began with", step="same", before=0),
    ]
    qk_norm: Annotated[bool, roles.shape("whether each head's queries and keys have a LayerNorm", before=False)]
    init: Annotated[
        Init,
        roles.start_values(
            "of kernels and embeddings: bert, deviation 0.02 everywhere; xavier, by fan-in and fan-out; fairseq, so with the "
            "queries, keys and values of a layer as one matrix"
        ),
    ]
    fans: Annotated[
        Fans,
        roles.start_values(
            "of xavier and fairseq: ungrouped, those before regrouping, so that all groupings start alike; own, each layer's",
            before="own",
        ),
    ]
    layers_per_group: Annotated[
        Positive, roles.shape("by what the fans of `ungrouped` are multiplied: the layers that regrouping made of one", before=1)
    ]
    hidden_dropout: Annotated[Fraction, roles.loss("after each sublayer", "dropout", "named")]
    attention_dropout: Annotated[Fraction, roles.loss("of the attention weights", "dropout", "named")]
    mlp_dropout: Annotated[Fraction, roles.loss("after the activation of the feed-forward sublayer", "dropout", "named")]
    embedding_dropout: Annotated[Fraction, roles.loss("of the embeddings", "dropout", "named")]
    layer_norm_epsilon: Annotated[Positive, roles.loss("added to the variance in every LayerNorm", "activation and LayerNorm")]
    compute_dtype: Annotated[Dtype, roles.loss("of matrix products and activations; parameters are float32", "precision", "named")]
    residual_dtype: Annotated[Dtype, roles.loss("of the residual stream", "precision", "named")]
    attention_implementation: Annotated[
        Literal["xla", "cudnn"],
        roles.clock(
            "of training: xla; cudnn, on NVIDIA GPUs with compute_dtype bfloat16 and no attention_dropout",
            "attention and rematerialisation",
            "named",
            before="xla",
        ),
    ]
    remat_policy: Annotated[
        Literal["auto", "none", "projections", "dots", "dots_no_batch", "full", "groups"],
        roles.clock(
            "what the forward pass keeps for the backward pass; auto: the fastest policy that fits the device",
            "attention and rematerialisation",
            "named",
        ),
    ]
    scan_unroll: Annotated[
        Count, roles.clock("layers in one iteration of the layer scan", "attention and rematerialisation", "named")
    ]


class DataConfig(Section, frozen=True):
    """Which text, how it becomes tokens, and how tokens become rows."""

    source: Annotated[
        str,
        roles.bookkeeping(
            "stdlib, text:GLOB (plain, .gz, .xz), parquet:GLOB[:COLUMN], tfds:NAME, or arrayrecord:DIR; globs and folders may be "
            "in a bucket (gs://)"
        ),
    ]
    tokenizer: Annotated[Literal["wordpiece", "bytes"], roles.rows("how text becomes tokens")]
    vocab_path: Annotated[str, roles.bookkeeping("a vocab.txt to load; empty: trained on the source's training documents")]
    lowercase: Annotated[bool, roles.rows("whether the tokenizer lowers case and strips accents")]
    sequence_length: Annotated[Count, roles.rows("T, tokens in a row", step="changes")]
    max_predictions: Annotated[NonNegative, roles.rows("P, the fixed number of predicted positions a row (mlm)", step="changes")]
    mask_fraction: Annotated[Fraction, roles.rows("share of a row's tokens that are predicted (mlm)")]
    whole_word_masking: Annotated[bool, roles.rows("whether the pieces of a word are masked together (mlm)")]
    validation_fraction: Annotated[Fraction, roles.rows("share of the documents held out")]
    seed: Annotated[NonNegative, roles.data_seed("of document split, row order and masking")]


class TranslationDataConfig(Section, frozen=True):
    """Which sentence pairs, how they become tokens, and how tokens become rows."""

    source: Annotated[str, roles.bookkeeping("numbers, text:SOURCE_GLOB,TARGET_GLOB, tfds:NAME or arrayrecord:DIR; gs:// too")]
    validation_source: Annotated[
        str, roles.bookkeeping("as source; empty: pairs of `source` held out by validation_fraction, or its own held-out part")
    ]
    tokenizer: Annotated[TranslationTokenizer, roles.rows("how sentences become tokens; one vocabulary for both sides")]
    vocab_path: Annotated[
        str, roles.bookkeeping("a vocabulary to load; empty: the one prepared with the rows, or learnt from the training pairs")
    ]
    sequence_length: Annotated[
        Count,
        roles.rows("S = T, tokens in a row of each side; the longest sentence kept, its end mark included", step="changes"),
    ]
    layout: Annotated[
        Literal["packed", "bucketed"],
        roles.rows("packed: several pairs in a row; bucketed: one pair a row, rows of like length together"),
    ]
    max_length_ratio: Annotated[float, Meta(ge=1), roles.rows("pairs whose sides differ more in tokens are left out")]
    validation_fraction: Annotated[Fraction, roles.rows("share of the pairs held out where validation_source is empty")]
    validation_sentences: Annotated[
        NonNegative, roles.rows("of the validation pairs, translated and scored at every evaluation; 0: none")
    ]
    seed: Annotated[NonNegative, roles.data_seed("of held-out pairs and row order")]


class ClassificationDataConfig(Section, frozen=True):
    """Which of GLUE's tasks, and how its examples become rows."""

    tokenizer: ClassVar[str] = "wordpiece"  # no choice, and no field

    task: Annotated[str, roles.rows("cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli")]
    source: Annotated[
        str,
        roles.bookkeeping(
            "tsv:DIR (gs:// too), with the original files in a folder a task, or tfds:glue[:VERSION], as TFDS has prepared them"
        ),
    ]
    vocab_path: Annotated[str, roles.bookkeeping("the WordPiece vocabulary that the encoder was pre-trained with")]
    lowercase: Annotated[bool, roles.rows("whether the tokenizer lowers case and strips accents")]
    sequence_length: Annotated[Count, roles.rows("T; where the texts do not fit, the longer one is cut", step="changes")]
    seed: Annotated[NonNegative, roles.data_seed("of row order")]


class SpanDataConfig(Section, frozen=True):
    """Which questions, and how a question and a part of its context become a row."""

    tokenizer: ClassVar[str] = "wordpiece"  # no choice, and no field

    source: Annotated[
        str,
        roles.bookkeeping(
            "json:FILE (gs:// too), in SQuAD's form, or tfds:NAME, such as tfds:squad/v2.0 or tfds:squad/v2.0:train[:10%]"
        ),
    ]
    validation_source: Annotated[str, roles.bookkeeping("as source; empty: articles of `source` held out by validation_fraction")]
    validation_fraction: Annotated[Fraction, roles.rows("share of the articles held out where validation_source is empty")]
    vocab_path: Annotated[str, roles.bookkeeping("the WordPiece vocabulary that the encoder was pre-trained with")]
    lowercase: Annotated[bool, roles.rows("whether the tokenizer lowers case and strips accents")]
    sequence_length: Annotated[Count, roles.rows("T, tokens in a row", step="changes")]
    stride: Annotated[Count, roles.rows("tokens of context from one window's start to the next one's")]
    max_question_length: Annotated[Count, roles.rows("tokens; longer questions are cut")]
    seed: Annotated[NonNegative, roles.data_seed("of held-out articles and row order")]


class OptimizerConfig(Section, frozen=True):
    """The update rule and its schedule."""

    name: Annotated[
        Literal["adamw", "lamb", "radam"],
        roles.loss("the update rule, with decoupled weight decay", "update rule", "named"),
    ]
    schedule: Annotated[
        Literal["linear", "constant", "inverse_sqrt"],
        roles.loss(
            "after the warm-up: linear to end_learning_rate after the last step, constant, or falling as step ** -0.5",
            "learning-rate schedule",
        ),
    ]
    learning_rate: Annotated[Positive, roles.loss("the highest, at the end of the warm-up", "learning-rate schedule")]
    end_learning_rate: Annotated[
        NonNegativeFloat, roles.loss("of the linear schedule, 0 for the others", "learning-rate schedule", before=0.0)
    ]
    warmup_steps: Annotated[NonNegative, roles.loss("steps in which the rate rises from 0", "learning-rate schedule")]
    beta1: Annotated[Fraction, roles.loss("decay of the first moment", "update rule")]
    beta2: Annotated[Fraction, roles.loss("decay of the second moment", "update rule")]
    epsilon: Annotated[Positive, roles.loss("added to the root of the second moment", "update rule")]
    weight_decay: Annotated[
        NonNegativeFloat, roles.loss("decoupled, of weights; not of biases, LayerNorms and omega", "update rule")
    ]
    clip_norm: Annotated[NonNegativeFloat, roles.loss("of the global gradient norm; 0: no clipping", "update rule")]


class TrainConfig(Section, frozen=True):
    """How long, how much at once, and what is written when."""

    seed: Annotated[NonNegative, roles.bookkeeping("of initialisation and dropout; may differ from run to run", "training seed")]
    start_from: Annotated[
        str,
        roles.loss(
            "a run folder whose parameters training starts from, but for heads that it lacks; empty: fresh ones", "start", before=""
        ),
    ]
    keep_moments: Annotated[
        bool,
        roles.loss("of that run also the optimiser's moments, and how many updates they have seen", "start", before=False),
    ]
    num_steps: Annotated[Count, roles.loss("updates of the parameters", "steps and batch")]
    batch_size: Annotated[
        Count,
        roles.loss(
            "B, rows of data.sequence_length of one step over all devices; of shorter rows a batch has more",
            "steps and batch",
            "changes",
        ),
    ]
    label_smoothing: Annotated[Fraction, roles.loss("share of the target spread evenly over the vocabulary", "steps and batch")]
    gradient_dtype: Annotated[
        Literal["compute", "float32"],
        roles.loss(
            "of kernels' gradients where devices add them up; compute: model.compute_dtype", "precision", "named", before="compute"
        ),
    ]
    xla_flags: Annotated[
        str, roles.clock("none, recommended, or --xla_a=1", "attention and rematerialisation", "named", before="none")
    ]
    accumulation_steps: Annotated[Count, roles.clock("micro-batches that one step is cut into", "micro-batches", "named")]
    log_interval: Annotated[Count, roles.bookkeeping("steps from one row of metrics.jsonl to the next")]
    tracker: Annotated[
        Literal["tensorboard", "wandb"],
        roles.bookkeeping(
            "what shows those rows too: tensorboard, by event files in the run folder; wandb, Weights & Biases",
            before="tensorboard",
        ),
    ]
    eval_interval: Annotated[NonNegative, roles.bookkeeping("steps from one evaluation to the next; 0: only after the last step")]
    eval_batches: Annotated[NonNegative, roles.loss("validation batches per evaluation; 0: all of them", "validation batches")]
    checkpoint_interval: Annotated[
        NonNegative, roles.bookkeeping("steps from one checkpoint to the next; 0: only after the last step")
    ]
    keep_checkpoints: Annotated[Count, roles.bookkeeping("so many of the newest checkpoints are kept")]
    keep_every: Annotated[NonNegative, roles.bookkeeping("checkpoints at multiples of this step are kept for good; 0: none")]
    max_skipped_steps: Annotated[Count, roles.bookkeeping("so many steps in a row with a non-finite loss or gradient end the run")]
    profile_steps: Annotated[str, roles.bookkeeping("FIRST:LAST, the steps that jax.profiler traces; empty: none", before="")]
    hang_seconds: Annotated[
        NonNegative,
        roles.bookkeeping(
            "a step or evaluation batch that takes longer ends the process with status 75; 0: 20 times the longest so far, and "
            "at least 300"
        ),
    ]


class MeshConfig(Section, frozen=True):
    """Devices along each mesh axis; -1 on one axis: the devices that the others leave."""

    data: Annotated[MeshAxis, roles.clock("parts that a batch is cut into", "mesh")]
    fsdp: Annotated[MeshAxis, roles.clock("parts that batch, parameters and optimiser state are cut into", "mesh")]
    tensor: Annotated[
        MeshAxis, roles.clock("parts that heads, feed-forward width and vocabulary are cut into; one head is not", "mesh")
    ]


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


def rows_in_batch(config: Config, length: int | None = None) -> int:
    """B of a batch whose rows have `length` tokens (None: data.sequence_length): every batch has as
    many places.
    """
    return config.train.batch_size * config.data.sequence_length // (length or config.data.sequence_length)


def to_dict(config: Section) -> dict[str, Any]:
    """The plain nested dictionary of a config, as `config.json` holds it, or of a section."""
    return msgspec.to_builtins(config)
