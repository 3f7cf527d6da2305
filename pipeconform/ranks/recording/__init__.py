"""What a rank communicates, recorded: every operation of every process group, and which of them block."""
