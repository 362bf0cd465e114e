"""A description of a Hugging Face checkpoint as mhsh reads it, in a few lines, before it is
imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mhsh.interop.bert_config import read_bert_config
from mhsh.interop.llama import CONFIG_FILE, is_llama, read_llama_config
from mhsh.interop.vocabulary import read_tokenizer, read_vocabulary

# The further flags of `mhsh import` by the class of transformers, which has the heads.
_OF_HEADS = {
    "BertModel": " --fresh-heads",
    "BertForSequenceClassification": " --task=glue:TASK",
    "BertForQuestionAnswering": " --task=squad:v2",
}


def describe_checkpoint(folder: Path) -> Iterator[str]:
    """Lines about the architecture, the positions, the order of the classes and the tokenizer.
    Raises UserError where mhsh does not import the model or its tokenizer.
    """
    path = folder / CONFIG_FILE
    if is_llama(folder):
        llama = read_llama_config(path)
        yield f"{llama.model_type}: {_shape(llama.fields)}, rotary positions"
        yield f"tokenizer: {type(read_tokenizer(folder)).__name__}"
        return
    bert, notes = read_bert_config(path)
    yield f"{bert.architecture or 'a BERT without a head'}: {_shape(bert.fields)}, learned positions"
    yield from notes
    if bert.architecture == "BertForSequenceClassification":
        yield f"classes, in the order of the outputs: {', '.join(bert.labels)}"
        if all(label == f"LABEL_{number}" for number, label in enumerate(bert.labels)):
            yield "their meaning is not in config.json: mhsh import takes it from --labels=A,B,..., in this order"
    vocabulary = read_vocabulary(folder)
    if vocabulary is None:
        yield "vocab.txt and tokenizer.json are missing: mhsh import takes the vocabulary of --config.data.vocab_path"
        return
    case = {True: "in lower case", False: "cased", None: "which does not say whether it lowers case"}[vocabulary.lowercase]
    yield f"tokenizer: WordPiece of {len(vocabulary.tokens):,} tokens, {case}"


def import_flags(folder: Path) -> str:
    """The flags with which `mhsh import` takes the checkpoint, as far as its config.json says."""
    if is_llama(folder):
        return "--config=gpt:6l4h"
    bert, _ = read_bert_config(folder / CONFIG_FILE)
    return f"--config=bert:12l12h{_OF_HEADS.get(bert.architecture or '', '')}"


def _shape(fields: dict[str, object]) -> str:
    layers, heads, width = fields["num_layers"], fields["num_heads"], fields["head_dim"]
    return (
        f"{layers} layers x {heads} heads of {width}, D = {fields['embed_dim']}, F = {fields['mlp_dim']}, "
        f"{fields['max_positions']} positions, {fields['vocab_size']} tokens"
    )
