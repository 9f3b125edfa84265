"""The student's verbs, and how a verdict is shown."""
