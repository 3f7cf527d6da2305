"""Chapter TRC: the tracing front end."""
