"""Chapter TRN: losses, gradients and updates."""
