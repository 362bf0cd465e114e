"""GPU kernels of our own for parts of a layer; `select` says where they run in XLA's place."""
