"""The oracle: what the full model computes without a pipeline."""
