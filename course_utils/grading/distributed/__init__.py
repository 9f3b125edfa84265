"""A check that runs on several ranks."""
