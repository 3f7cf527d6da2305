"""The standard, executable: a package per chapter, a function per requirement.

A function's docstring says what is demanded and why; its decorator names the level, the promise on which the
requirement rests, and the cases; its body judges what the ranks showed.
"""

__all__ = ["CHAPTERS"]

CHAPTERS = (
    "forward",
    "training",
    "split_backward",
    "schedules",
    "errors",
    "communication",
    "lifecycle",
    "data_parallel",
    "tracing",
    "data_parallel_wrappers",
)
"""The packages of the chapters, in the order of the standard."""
