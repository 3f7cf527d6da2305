"""Chapter SPL: input and weight gradients apart."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="SPL", title="Input and weight gradients apart")
