"""What counts, what was found, and what it is worth.

``plan``     what is handed out and counts: exercises, points, due date; written by ``course release``
``record``   what was found of one submission: the one format of everything that comes out
``marking``  from a verdict to points
``align``    records laid out by a plan
``told``     what a student may be told of a result
``text``     students' text made harmless for HTML, CSV and file names
"""
