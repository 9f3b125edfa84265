"""For instructors: editions for a class, its submissions graded in a sandbox, and what comes out.

``plan``       what is handed out and counts: exercises, points, due date; written by ``course release``
``editions``   an edition for students, with the answers or without
``formats``    the same for nbgrader, Gradescope and GitHub Classroom
``update``     answers carried into a newer edition
``intake``     submissions as they are found, damaged ones too
``sandbox``    where students' code runs: bubblewrap, a process forked for each submission, a channel
``run``        a class graded by many workers, or a Dask cluster's; interrupted, it goes on
``marking``    from a verdict to points; ``points`` and ``alone`` give them to nbgrader and Gradescope
``record``     what was found of one submission: the one format of everything that comes out
``out``        gradebooks, imports, feedback, class report, similarity
"""
