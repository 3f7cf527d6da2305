"""Where a wrong value begins."""
