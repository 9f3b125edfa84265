"""Processes, handled with care: memory that is cheap to fork, time limits, a process that forks."""
