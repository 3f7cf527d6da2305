"""`NotPlainError`: why a program is not written as plain torch."""

__all__ = ["NotPlainError"]


class NotPlainError(Exception):
    """The case, or what was found in it, cannot be written plainly; the message says what of it."""
