"""Conformance checks: what every algorithm and every model must do.  `fedtune check` and the test suite run them.

    runs, stays finite        in single and double precision, one client after the other
    changes nothing else      not its arguments, no memory outside the state, no draws from the process's random streams
    is the same everywhere    clients stacked or one by one, in any groups, after a resume; bit for bit where possible
    reports the truth         about what it sends, and about which hyperparameters have an effect from which round on

Checks look at runs in small cases; each run is made once and shared (`subject.Subject`, `cases`).  A failed check
gives the place in the author's file and how to fix it (`check.Violation`).
"""
