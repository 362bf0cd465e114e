"""Scoring trained models."""
