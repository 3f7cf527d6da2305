"""Judging data-parallel wrappers: cases, what the ranks show, what is right, and the verdict."""
