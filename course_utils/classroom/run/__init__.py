"""Submissions graded: a class by many workers, or one submission where another system runs us.

``grade_class``  a class: handed out, written down as it comes; interrupted, it goes on
``todo``         which submissions are to be graded
``tasks``        what crosses to a worker and back
``workers``      processes of this machine or a Dask cluster's, and what happens when one dies
``worker``       a worker's own grader and sandbox; ``sandboxes``: those of this process
``grader``       one submission's cells → its record
``journal``      the run folder
``terminal``     `course grade`: progress, summary, what stopped it
``alone``        in Gradescope's container and GitHub's actions
``notebook_points``  in a notebook that nbgrader runs
"""
