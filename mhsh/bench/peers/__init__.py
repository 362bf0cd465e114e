"""PyTorch peers."""
