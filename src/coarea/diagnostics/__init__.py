"""What the draws say."""
