"""The commands of ``pipeconform``, one small module each; what is heavy is imported inside them."""
