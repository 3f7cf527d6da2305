"""Chapter DPC: data parallelism around and inside stages."""
