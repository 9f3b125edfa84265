"""For instructors: editions for a class, its submissions graded in a sandbox, and what comes out.

In this order, each from those before it:

``marks``        what counts, what was found, and what it is worth
``submissions``  submissions as they are found, damaged ones too
``exports``      marks as Canvas, Moodle, Gradescope and GitHub Classroom read them
``reports``      gradebooks, feedback, class report, similarity
``run``          a class graded by many workers, or a Dask cluster's; interrupted, it goes on
``release``      an edition for students, with the answers or without
``platforms``    the same for nbgrader, Gradescope and GitHub Classroom

``points`` and ``alone`` are names that notebooks and workflows hold which were handed out.
"""
