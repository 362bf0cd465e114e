"""Text to token ids and back."""
