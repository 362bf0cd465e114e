"""Commands that train nothing: configs, and what a run will cost."""
