"""Certification: what a package contains, when it deserves its level, and how anyone can check it."""
