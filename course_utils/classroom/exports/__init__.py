"""Marks in the formats that other systems import: text in, text out.

``gradescope``        results.json of one submission
``github_classroom``  the base64 that Classroom's reporter reads
``canvas``, ``moodle``  a column of points; ``imports``: what to know before importing it
``roster``            who is in the course, and whom of them each student is
``account``           what a student may read of a submission, in plain text
"""
