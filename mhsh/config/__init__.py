"""The schema of a run, and the checks of a config."""
