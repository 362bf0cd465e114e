"""Hugging Face's BERT checkpoints, in and out."""
