"""Chapter DPW: module wrappers that keep data-parallel replicas in step; run by ``pipeconform run --impl WRAPPER``."""

from pipeconform.spec.catalogue import Heading

__all__ = ["CHAPTER"]

CHAPTER = Heading(id="DPW", title="Data-parallel wrappers", kind="wrapper")
