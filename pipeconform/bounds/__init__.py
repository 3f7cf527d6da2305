"""Running error analysis: balls of values, and what they allow."""
