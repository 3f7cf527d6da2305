"""What a rank records."""
