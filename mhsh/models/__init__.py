"""The modules, pure flax.linen."""
