"""Checks of results against expected failures, and comparisons of one result with the next."""
