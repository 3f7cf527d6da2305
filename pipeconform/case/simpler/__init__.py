"""Cases simpler than a given one: pure functions from a case to candidates, the largest cuts first."""
