"""Editions in the forms that other systems expect: nbgrader, Gradescope, GitHub Classroom.

Each form is a module with ``made(edition)``: the edition with the files that the system wants, those
for students among its `files`, those that stay with the instructor among `instructor`. ``forms``
releases an edition in one of them.

``solution_marks``  a cell with its solution between the marks that nbgrader takes out
``package_files``   files of the package that a form adds
"""
