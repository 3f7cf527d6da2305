"""Records what a rank computes and communicates."""
