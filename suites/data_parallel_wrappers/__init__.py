"""Chapter DPW: module wrappers that keep data-parallel replicas in step; run by ``pipeconform wrappers run``."""
