"""What the PyTorch oracles share: a meta device that behaves like CUDA, a live-byte tracker, the plain models."""
