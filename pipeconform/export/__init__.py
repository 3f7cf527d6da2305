"""Stored cases as stand-alone programs: the adapter's source, and the judgement that the product itself uses."""
