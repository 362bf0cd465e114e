"""The sharded training step, its state, its checkpoints and its loop."""
