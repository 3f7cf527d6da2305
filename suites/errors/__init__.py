"""Chapter ERR: errors."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="ERR", title="Errors")
