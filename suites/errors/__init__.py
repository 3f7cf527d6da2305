"""Chapter ERR: errors."""
