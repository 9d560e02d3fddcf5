"""Commands, called as their users call them."""

import re


def refusal(main, arguments, capsys):
    """The one line on stderr of a command that ends with status 2; below one with a line of the user's, a traceback."""
    try:
        status = main(arguments.split())
    except SystemExit as end:  # argparse's own
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2
    lines = [line for line in err.splitlines() if not line.startswith(("note", "warning"))]
    assert lines and not out
    assert len(lines) == 1 or (
        re.search(r"\.py:\d+: |is not valid Python", lines[0]) and lines[1].startswith(("Traceback", "  "))
    )
    return lines[0]
