"""Text to token rows to batches."""
