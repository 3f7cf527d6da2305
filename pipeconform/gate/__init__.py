"""Decisions about results: what was expected, and what changed from one result to the next."""
