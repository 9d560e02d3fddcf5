"""Users' own Python and data: one door from a reference, as it is typed, to an object, and back to a line of theirs.

references    what is typed: FILE.py:NAME(options), and its parts
user_files    take: the file and what it imports from its folder, with hashes.  load: the object.  An experiment carries
              the files along, a study keeps copies of them
user_imports  runs of files: a trial, or a run on a fresh seed, executes them anew
user_errors   whose line an error is, the line that says so, and Python's traceback from there on

A user's code is ordinary, trusted code.  What it prints, changes, closes or ends is its own business.
"""
