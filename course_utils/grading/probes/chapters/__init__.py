"""Probes of the chapters' own, one module a chapter, named like its reference."""
