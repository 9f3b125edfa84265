"""An answer is driven, under its limits, and what was seen or raised is kept."""
