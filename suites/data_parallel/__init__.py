"""Chapter DPC: data parallelism around and inside stages."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="DPC", title="Data parallelism")
