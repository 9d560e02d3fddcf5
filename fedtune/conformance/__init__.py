"""Conformance checks: what every algorithm and every model must do.  `fedtune check` and the test suite run them.

    runs, stays finite        in single and double precision, one client after the other
    changes nothing else      not its arguments, no memory outside the state, no draws from the process's random streams
    is the same everywhere    clients stacked or one by one, in any groups, after a resume; bit for bit where possible
    keeps its declarations    what it sends, and which hyperparameters have an effect from which round on

Each run in a small case is made once and shared (`subject.Subject`, `cases`).  A failed check gives the place in the
author's file and how to fix it (`check.Violation`).
"""
