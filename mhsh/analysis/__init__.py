"""What a model costs and how it behaves."""
