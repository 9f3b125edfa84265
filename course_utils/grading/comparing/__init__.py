"""Is it what was expected, and if not, where does it first differ?"""
