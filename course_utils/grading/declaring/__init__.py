"""What an exercise is, and how it is found by its key."""
