"""The side that judges an answer in another process."""
