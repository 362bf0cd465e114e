"""The processes of a run: they join, agree, stop together, and notice one that is lost."""
