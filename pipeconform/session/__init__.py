"""A run inside pytest: what is judged, by how many processes, and what is gathered."""
