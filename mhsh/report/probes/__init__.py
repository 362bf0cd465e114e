"""Pictures of probes."""
