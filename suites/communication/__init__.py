"""Chapter LIF: life cycle and resources."""
