"""The full model's answer, without a pipeline."""
