"""Drawing cases: their sizes, and what each subject adds to a plain case."""
