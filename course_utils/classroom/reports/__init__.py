"""Everything that people read of a run.

``gradebook``   gradebook.csv and gradebook.json, and FORMAT.md, which documents them
``feedback``    a page for each student, without the values of hidden cases
``report``      the class in one page: what went wrong, how often, what to teach again
``drawings``    its drawings, as numbers; ``tally``: its figures, counted
``similarity``  answers that resemble one another, as a help; ``similarity_page`` shows them
``sections``    where in the book an exercise is; ``wording``: what several pages say alike
``page``        the templates, which escape whatever they are given; they are in ``templates/``
``write``       all files of a run
"""
