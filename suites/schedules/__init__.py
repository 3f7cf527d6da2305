"""Chapter SCH: schedules as executed and as tables."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="SCH", title="Schedules as executed and as tables")
