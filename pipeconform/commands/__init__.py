"""The commands of ``pipeconform``, one small module each."""
