"""Documents to batches of pre-training."""
