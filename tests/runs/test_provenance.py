"""What a record says of the code and the command that made a run."""

import pytest

from fedtune.runs import provenance


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("/somewhere/bin/fedtune", ["fedtune"]),
        ("/somewhere/fedtune/__main__.py", ["fedtune"]),
        ("/somewhere/fedtune/search.py", ["python", "-m", "fedtune.search"]),
    ],
)
def test_the_command_is_one_that_anyone_can_type(
    program: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program, "--algo", "gfpl"])
    assert provenance.command_line() == [*words, "--algo", "gfpl"]


def test_the_library_that_dealt_the_rows_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    of_package = provenance.version
    monkeypatch.setattr(provenance, "version", lambda name: "0.6" if name == "flwr-datasets" else of_package(name))
    dealt = provenance.of_scenario({"scenario": {"partition": "flwr:IidPartitioner()"}})
    assert dealt["versions"]["flwr-datasets"] == "0.6" and dealt["scenario"]
    for record in ({"scenario": {"partition": "iid"}}, {"algorithm": "own"}):
        assert "flwr-datasets" not in provenance.of_scenario(record)["versions"]
