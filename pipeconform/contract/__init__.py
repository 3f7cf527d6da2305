"""What an adapter is given and gives back, a module each; `pipeconform.adapter` re-exports every name."""
