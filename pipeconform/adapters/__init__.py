"""Adapters for known implementations, one file each."""
