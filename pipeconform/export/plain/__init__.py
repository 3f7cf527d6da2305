"""Stored cases of torch's pipelining as plain torch scripts, as its user would write them."""
