"""Simpler cases than a given one: pure functions from a case to candidates, the crudest first."""
