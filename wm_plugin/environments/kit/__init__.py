"""What worlds share."""
