"""mhsh: shallow multi-head Transformers against their deep single-head twins."""

__version__ = "0.1.0"
