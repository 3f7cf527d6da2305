"""Pytest configuration of a clone: nothing but what an installed pipeconform has too."""
