"""What every algorithm and every model must keep, as laws that can be asked: `fedtune check` and the test suite do.

    runs, stays finite        in single and double precision, one client after the other
    keeps to itself           changes nothing that it was given, remembers nothing outside the state, draws by address
    is the same everywhere    as one program or in a loop, in any groups, after a resume, bit for bit where it must be
    tells the truth           of what it sends, of what its hyperparameters do and from which round on

A law looks at runs in small settings that are made once and shared (`subject.Subject`, `settings`); what breaks it is
told with its place in the author's file and what to do (`law.Violation`).
"""
