"""Judgements: from what the ranks showed to violations, with about one module per chapter."""
