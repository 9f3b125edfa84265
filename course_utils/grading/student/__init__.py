"""The side that runs a student's code: all that a sandbox sees of the engine, with what lies below it."""
