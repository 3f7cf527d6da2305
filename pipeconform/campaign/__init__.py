"""A run of the suite: drawing corpora, executing cases, judging cells, shrinking counter-examples."""
