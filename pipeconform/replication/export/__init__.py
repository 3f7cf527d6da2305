"""A wrapper's stored cases as programs that need torch and the adapter only."""
