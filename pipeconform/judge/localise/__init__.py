"""Finds the tensor with which a wrong value begins."""
