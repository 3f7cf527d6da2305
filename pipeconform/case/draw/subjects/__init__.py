"""One file for every subject that cases can have."""
