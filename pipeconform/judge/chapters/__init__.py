"""Which judgement answers which requirement: a module per chapter, joined by `judge.registry`."""
