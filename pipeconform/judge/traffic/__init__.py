"""What the ranks sent and received, and what it carried."""
