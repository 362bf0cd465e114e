"""What a model's layers do."""
