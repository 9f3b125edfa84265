"""How an answer is driven: a case goes in, an observation comes out."""
