"""Small data sets that TFDS prepares, without downloads.

Importing this imports TFDS, which takes a second: fixtures import it, modules do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

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
