"""From an answer to a verdict: the ladder, the diagnosis, the words."""
