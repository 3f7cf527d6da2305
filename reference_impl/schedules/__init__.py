"""Generators of schedule tables, one file per family."""
