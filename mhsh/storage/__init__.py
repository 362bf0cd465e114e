"""Storage on disks and in buckets: every question, every write, and the folder of a run."""
