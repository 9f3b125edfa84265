"""For instructors: editions for a class, its submissions graded in a sandbox, and what comes out.

``plan``     what is handed out and counts: exercises, points, due date; written by ``course release``
``record``   what was found of one submission: the one format of everything that comes out
"""
