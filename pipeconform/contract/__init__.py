"""What an adapter receives and returns; `pipeconform.adapter` re-exports every name."""
