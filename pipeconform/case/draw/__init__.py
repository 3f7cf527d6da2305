"""Drawing cases: what each subject adds to a plain one, and how large."""
