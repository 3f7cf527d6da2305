"""Certification: what a package holds, when it deserves its level, and how anybody can check it."""
