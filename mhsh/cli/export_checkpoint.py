"""mhsh export: a run's checkpoint as a folder that transformers loads."""

from __future__ import annotations

from mhsh.cli.parser import RunFolderArgument, StepFlag
from mhsh.config.schema import ClassificationDataConfig, ModelConfig, TranslationDataConfig
from mhsh.config.shapes import shape_in_words
from mhsh.data.glue import find_task
from mhsh.data.wordpiece import load_wordpiece
from mhsh.errors import UserError
from mhsh.files import check_new_folder, new_folder
from mhsh.interop.bert_config import architecture_of
from mhsh.run_folder import WORDPIECE_FILE, RunFolder

EXAMPLES = ("mhsh export runs/12l12h --out=exported", "mhsh export runs/12l12h --step=1000 --out=exported")


def run(folder: RunFolderArgument, /, *, out: str, step: StepFlag = None) -> int:
    """Writes a run's checkpoint as a folder with a BERT that transformers loads.

    Args:
      out: where it goes, new

    Raises:
      UserError: the run is of a model that no BERT computes, has no such checkpoint, or no
        WordPiece vocabulary; `out` is not new.
    """
    from mhsh.interop.export_bert import check_exportable, export_bert
    from mhsh.training.checkpoints.restore import load_for_inference

    check_new_folder(out)
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    check_exportable(config.model)
    data = config.data
    assert not isinstance(data, TranslationDataConfig), "no BERT has its objective"
    if data.tokenizer != "wordpiece":
        raise UserError(f"data.tokenizer = {data.tokenizer!r} cannot be exported: a BERT of transformers reads WordPiece alone")
    tokenizer = load_wordpiece(run_folder.path / WORDPIECE_FILE, data.lowercase)
    labels = find_task(data.task).label_names if isinstance(data, ClassificationDataConfig) else ()
    step = run_folder.newest_checkpoint() if step is None else step
    _, params = load_for_inference(run_folder, config, step, 1)
    with new_folder(out) as unfinished:
        plain = export_bert(unfinished, config.model, params, tokenizer, lowercase=data.lowercase, labels=labels)
    _print(config.model, plain, folder, step, out)
    return 0


def _print(model: ModelConfig, plain: ModelConfig, folder: str, step: int | None, out: str) -> None:
    print(
        f"{out}: {architecture_of(plain)} of {folder}, step {step}, {shape_in_words(plain)} of {plain.head_dim}, "
        f"D = {plain.embed_dim}, F = {plain.mlp_dim}"
    )
    if model.mlp_dropout or model.embedding_dropout != model.hidden_dropout:
        print(
            f"not in config.json, which has one dropout for all but attention ({model.hidden_dropout}): model.mlp_dropout = "
            f"{model.mlp_dropout}, model.embedding_dropout = {model.embedding_dropout}; only further training would show it"
        )
