"""Chapter FWD: values through the forward pass."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="FWD", title="Values through the forward pass")
