"""What the ranks sent and received, and what the messages carried."""
