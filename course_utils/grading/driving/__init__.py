"""How an answer is driven: cases, probes, and what a contract bounds."""
