"""Python text, read and never run: names, notebook cells, answers, stubs."""
