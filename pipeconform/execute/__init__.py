"""Runs one case on one rank: the adapter's plan, the steps of the program, and what they showed."""
