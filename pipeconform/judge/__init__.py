"""From observations to violations: oracle, numerics, one module per chapter."""
