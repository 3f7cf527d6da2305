"""Chapter FWD: values through the forward pass."""
