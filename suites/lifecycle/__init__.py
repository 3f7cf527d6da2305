"""Chapter LIF: life cycle and resources."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="LIF", title="Life cycle and resources")
