"""The task that a config describes, its corpus, and the vocabulary of a run."""

from __future__ import annotations

from typing import Any

from etils import epath

from mhsh.config.schema import ClassificationDataConfig, Config, DataConfig, SpanDataConfig, TranslationDataConfig
from mhsh.data.corpus import Corpus, Task
from mhsh.data.fine_tuning import ClassificationTask, SpanTask
from mhsh.data.pretraining import PretrainingTask
from mhsh.data.subword import SubwordTokenizer
from mhsh.data.translation import TranslationTask
from mhsh.data.wordpiece import Tokenizer
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder


def task_of(config: Config) -> Task[Any]:
    """The task of the config's data section."""
    match config.data:
        case TranslationDataConfig():
            return TranslationTask(config.model, config.data)
        case ClassificationDataConfig():
            return ClassificationTask(config.model, config.data)
        case SpanDataConfig():
            return SpanTask(config.model, config.data)
        case DataConfig():
            return PretrainingTask(config.model, config.data)


def load_corpus(config: Config, vocabulary: epath.PathLike | None) -> Corpus[Any]:
    """The corpus of a config, with the `vocabulary` of its run (None: there is none yet); see
    `Task.load`.
    """
    return task_of(config).load(vocabulary)


def load_tokenizer(folder: RunFolder, config: Config) -> Tokenizer | SubwordTokenizer:
    """The vocabulary of a run; its data is not read. Raises UserError where it has no checkpoint,
    or its vocabulary is missing, damaged or of another run.
    """
    vocabulary = folder.vocabulary(config)
    if vocabulary is None:
        raise UserError(f"{folder.checkpoints_path} holds no checkpoint; train the run first")
    return task_of(config).read_tokenizer(vocabulary)
