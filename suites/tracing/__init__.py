"""Chapter TRC: the tracing front end."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="TRC", title="Tracing front end")
