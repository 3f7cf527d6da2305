"""Records what a rank communicates: every operation of every process group, and which of them block."""
