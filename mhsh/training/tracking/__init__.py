"""What watches a run: trackers, progress, wall time, profiles, and what a NaN leaves."""
