"""Judging data-parallel wrappers: drawing cases, running them on ranks, the oracle, and the judgements."""
