"""Chapter COM: communication."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="COM", title="Communication")
