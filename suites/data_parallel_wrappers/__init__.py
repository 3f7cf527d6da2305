"""Chapter DPW: module wrappers that keep data-parallel replicas in step; run by ``pipeconform run --impl WRAPPER``."""
