"""Commands that compare runs, sweep, and look into models."""
