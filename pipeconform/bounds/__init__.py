"""Comparison of values, and bounds on their differences by running error analysis."""
