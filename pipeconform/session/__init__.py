"""A run inside pytest: collecting and judging cells, in one process or several, and gathering the results."""
