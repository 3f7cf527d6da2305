"""Chapter SPL: input and weight gradients apart."""
