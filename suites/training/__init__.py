"""Chapter TRN: losses, gradients and updates."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="TRN", title="Losses, gradients and updates")
