"""What a run is: its schema, and how a config is checked."""
