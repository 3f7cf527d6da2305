"""The result file, and the reports made from it."""
