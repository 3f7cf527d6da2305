"""The result file and everything made from it."""
