"""Run folders loaded for reports."""
