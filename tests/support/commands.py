"""Commands, called as their users call them."""

from __future__ import annotations


def refusal(main, arguments, capsys):
    """The one line on stderr of a command that ends with status 2."""
    try:
        status = main(arguments.split())
    except SystemExit as end:  # argparse's own
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2
    lines = [line for line in err.splitlines() if not line.startswith(("note", "warning"))]
    assert len(lines) == 1 and "Traceback" not in err and not out
    return lines[0]
