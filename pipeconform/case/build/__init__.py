"""Builds torch modules and tensors from cases."""
