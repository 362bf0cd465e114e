"""The corpus that a config asks for, by its data section, and the vocabulary of a run."""

from __future__ import annotations

from etils import epath

from mhsh.config.schema import ClassificationDataConfig, Config, DataConfig, SpanDataConfig, TranslationDataConfig
from mhsh.data.corpus import Corpus
from mhsh.data.fine_tuning import classification, spans
from mhsh.data.pretraining import corpus as pretraining
from mhsh.data.pretraining.task import PretrainingTask
from mhsh.data.tokenizers.subword import SubwordTokenizer, load_subword
from mhsh.data.tokenizers.wordpiece import Tokenizer
from mhsh.data.translation import corpus as translation
from mhsh.errors import UserError
from mhsh.run_folder import RunFolder, vocab_file


def load_corpus(config: Config, saved: epath.PathLike | None) -> Corpus:
    """Reads data.source and makes the examples of both splits.

    Equal configs and text give equal corpora in every process.

    Args:
      saved: the run folder with the vocabulary of this run, under the name `vocab_file` gives.
        None: there is none yet. Then it is that of data.vocab_path, or trained on the training
        split alone.

    Raises:
      UserError: whatever is wrong with the source, the vocabulary or their fit to the config; a
        split without examples.
    """
    saved_vocab = epath.Path(saved) / vocab_file(config) if saved is not None else None
    match config.data:
        case TranslationDataConfig():
            return translation.load_translation(config.model, config.data, saved_vocab)
        case ClassificationDataConfig():
            return classification.load_classification(config.model, config.data, saved_vocab)
        case SpanDataConfig():
            return spans.load_spans(config.model, config.data, saved_vocab)
        case DataConfig():
            return pretraining.load_pretraining(config.model, config.data, saved_vocab)


def load_tokenizer(folder: RunFolder, config: Config) -> Tokenizer | SubwordTokenizer:
    """The vocabulary of a run that was pre-trained or translates; its data is not read.

    Raises:
      UserError: it is another run, or its vocabulary is missing, damaged or of another run.
    """
    path = folder.path / vocab_file(config)
    match config.data:
        case DataConfig():
            folder.check_vocabulary(config)
            return PretrainingTask(config.model, config.data).read_tokenizer(path)
        case TranslationDataConfig():
            folder.check_vocabulary(config)
            return load_subword(path)
        case _:
            raise UserError(
                f"{folder.path} is a run of model.objective = {config.model.objective!r}, for a task's examples: see mhsh predict"
            )
