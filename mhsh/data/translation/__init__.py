"""Sentence pairs to batches of translation."""
