"""Stored cases as programs: the adapter to be read, and behind it the judgement that the product itself uses."""
