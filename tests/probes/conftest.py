"""The tiny models and batches of the tests of the models, for probes to look into."""

from tests.models.conftest import error, fresh, make_batch, make_pairs, random_like, random_params, tiny, tiny_seq2seq

__all__ = ["error", "fresh", "make_batch", "make_pairs", "random_like", "random_params", "tiny", "tiny_seq2seq"]
