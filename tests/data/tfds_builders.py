"""Small data sets that TFDS prepares, with its own builders where it has them, without downloads.

Importing this imports TFDS, which takes a second: fixtures import it, modules do not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.datasets.squad import squad_dataset_builder as squad
from tensorflow_datasets.text import glue

tfds.disable_progress_bar()


def prepare(
    builder: Callable[..., Any], folder: Path, file_format: str = "array_record", num_shards: int = 3, **arguments: Any
) -> None:
    """Prepares a data set in `folder`."""
    folder.mkdir(exist_ok=True)
    options = tfds.download.DownloadConfig(num_shards=num_shards)
    builder(data_dir=folder, file_format=file_format, **arguments).download_and_prepare(download_config=options)


class _NoDownloads:
    url_infos = None  # TFDS would look for them with a library that it does not depend on


class Wmt14Translate(_NoDownloads, tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """With the features of wmt14_translate/de-en. The order is TFDS's own, by hashed keys."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en")]  # noqa: RUF012  as TFDS wants it

    def _info(self) -> Any:
        features = tfds.features.Translation(languages=["de", "en"])
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("de", "en"))

    def _split_generators(self, dl_manager: Any) -> Any:
        return {"train": self._generate_examples(2500), "validation": self._generate_examples(7)}

    def _generate_examples(self, count: int) -> Iterator[Any]:
        for number in range(count):
            yield number, {"de": f"Zahl {number} \u00fc\u2028", "en": f"number {number}"}


class Wikipedia(_NoDownloads, tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Articles, the first of them empty."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="20230601.en")]  # noqa: RUF012

    def _info(self) -> Any:
        features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "title": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager: Any) -> Any:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[Any]:
        for number in range(40):
            text = f"Article {number} \u00fc\u2028 begins.\n\n  It goes on. \r\n \n\nIt ends." if number else " \n"
            yield number, {"text": text, "title": f"Title {number}"}


class Quiz(_NoDownloads, tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """With the features of SQuAD, but plain texts as answers."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        names = ("title", "context", "id", "question")
        features = {name: tfds.features.Text() for name in names} | {"answers": tfds.features.Sequence(tfds.features.Text())}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> Any:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[Any]:
        yield 0, {"title": "t", "context": "red", "id": "q0", "question": "Who?", "answers": ["red"]}


def prepare_glue(
    folder: Path, task: str, version: str, splits: Mapping[str, tuple[str, str]], changes: Mapping[str, Any] | None = None
) -> None:
    """Prepares glue/TASK with TFDS's own builder.

    Args:
      splits: the file of each split and, for MRPC, the file of the ids that belong to it.
      changes: fields of the configuration that are to differ from TFDS.
    """
    config = copy.copy(glue.Glue.builder_configs[task])
    config.version = tfds.core.Version(version)
    for name, value in (changes or {}).items():
        assert hasattr(config, name)
        setattr(config, name, value)

    class Glue(_NoDownloads, glue.Glue, skip_registration=True):
        BUILDER_CONFIGS = [config]  # noqa: RUF012

        def _split_generators(self, dl_manager: Any) -> Any:
            return {
                split: self._generate_examples(path, "dev", {"train": path, "dev_ids": ids})
                for split, (path, ids) in splits.items()
            }

    prepare(Glue, folder, config=config)


def prepare_squad(folder: Path, config: str, version: str, splits: Mapping[str, str], file_format: str = "array_record") -> None:
    """Prepares squad/CONFIG with TFDS's own builder, from the file of each split."""

    class Squad(_NoDownloads, squad.Builder, skip_registration=True):
        VERSION = tfds.core.Version(version)
        name = "squad"
        pkg_dir_path = Path(squad.__file__).parent

        def _split_generators(self, dl_manager: Any) -> Any:
            # Keys are numbers, as TFDS wants no key twice.
            return {split: enumerate(each for _, each in self._generate_examples(path)) for split, path in splits.items()}

    prepare(Squad, folder, file_format, num_shards=2, config=config)
