"""How a check may end."""

PASSED, FAILED, NOT_ATTEMPTED, SKIPPED = "passed", "failed", "not attempted", "skipped"
INTERRUPTED = "interrupted"
