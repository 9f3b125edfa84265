"""The rank's side: the process that runs what the kernel sends, and what it says of itself."""
