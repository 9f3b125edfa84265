"""What students handed in, as it is found; damaged ones too.

``folders_and_zips``  the files below a folder or in a zip, each read to a bound
``owners``            whose a file is, in the layouts of the learning systems
``handed_out``        which notebooks are those of the assignment
``cells``             the code cells of one notebook
``intake``            all of it: a place → submissions → their code cells
"""
