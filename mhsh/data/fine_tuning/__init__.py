"""Examples to batches of fine-tuning."""
