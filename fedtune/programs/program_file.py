"""Read and check a program file: TOML that says how a program of the user's is run and what it prints.

Everything in it is data.  Each mistake is refused in one line, with the file's line and key, before anything starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo, with_config

from fedtune.core.errors import UserError, require_known, unknown
from fedtune.core.hyper import Hyperparameter
from fedtune.core.terminal import one_line
from fedtune.programs import command, config_files, entries, fingerprint, flower, metric, space_words
from fedtune.programs.entries import Count, Flag, Seconds, Text, Whole, Words, at, of_key, refused
from fedtune.programs.metric import ProgramMetric
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile

CHECK_KEYS = ("command", "folder", "environment", "write", "metrics", "file")
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", "/")  # ends of files that are no text
PATTERN_WITH_ROUND = "'round (?P<round>[0-9]+): acc ([0-9.]+)'"


def _folder(text: str, info: ValidationInfo) -> str:
    folder = str(entries.below(text, info))
    if not os.path.isdir(folder):
        raise refused(text, "a folder that is there", f"there is none at {one_line(folder)}")
    return folder


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or name.startswith("FEDTUNE_"):
        raise UserError(f"environment must have names of variables, not of fedtune's own, but got {name!r}")
    return name


def _setting(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise refused(value, "text or a number")
    return str(value)


def _reader(text: str, info: ValidationInfo) -> str:
    if not re.fullmatch(r".*\.py:\w+", text):
        raise refused(text, "a function of a file", 'for example "reader.py:rows"')
    user_files.take(path := str(entries.below(text, info)))
    return path


Environment = dict[Annotated[str, AfterValidator(_variable)], Annotated[str, BeforeValidator(_setting)]]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that trains: how it is run, what it may be given, and what its output means.

    The fields up to `check` are the keys of a program file.
    """

    command: Words
    rounds: Count
    metrics: Annotated[dict[metric.Name, ProgramMetric], Field(min_length=1)]
    name: Text
    folder: Annotated[Text, AfterValidator(_folder)]  # where it runs
    space: space_words.Space = field(default_factory=dict)
    defaults: space_words.Defaults = field(default_factory=dict)
    seed: Text = ""  # "{seed}", an environment variable's name, or "none"
    environment: Environment = field(default_factory=dict)
    write: config_files.Files = field(default_factory=dict)
    file: Text | None = None  # that it writes its figures to
    reader: Annotated[Text, AfterValidator(_reader)] | None = None  # a function of the user's that reads that file
    round_column: Text = "round"  # of that file: the number of the round; rounds are counted where there is none
    report_every: Count | None = None  # the rounds that a report stands for, if that was said
    first_round: Whole = 1  # the number that the program gives its first round
    stall: Seconds = 600.0  # seconds without output after which it counts as hung
    longest_round: Seconds = 86400.0  # seconds that a round may take, whatever is printed meanwhile
    pty: Flag = False
    isolate: Literal["copy"] | None = None  # each trial runs in a copy of the folder
    gpu: Literal["visible", "machine"] = "visible"  # what {gpu} counts: the GPUs that it sees, or the machine's
    resume_arguments: Words = ()
    check: Program | None = None  # what the final check runs, if it is something else
    # what follows from these
    hyper: dict[str, Hyperparameter] = field(default_factory=dict)  # those that are searched, and those that are fixed
    conditions: space_words.Conditions = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # for the user, one line each
    path: str = ""  # the program file, or the option of a command line
    text: str = ""  # its content

    @property
    def searched(self) -> tuple[str, ...]:
        """The hyperparameters that vary."""
        return tuple(self.space)

    @property
    def reads_text(self) -> bool:
        """Whether its file is a text, in whose lines patterns are searched, and no table."""
        return bool(self.file) and not self.reader and not str(self.file).endswith(TABLES)

    @property
    def every(self) -> int:
        """The rounds that a report stands for: the k-th is of round k · every."""
        return self.report_every or 1

    def configuration(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration with defaults for what it leaves out; UserError for a name or value that cannot be."""
        require_known(f"hyperparameter of {self.name}", config, self.hyper)
        return {name: hp.check(config[name]) if name in config else hp.default for name, hp in self.hyper.items()}

    def selectable(self, selects_on_test: bool = False) -> dict[str, str]:
        """The metrics that a search may select by, with their directions; "" for one that was not said."""
        return {name: m.mode or "" for name, m in self.metrics.items() if selects_on_test or not m.tests}

    @property
    def reported(self) -> tuple[str, ...]:
        """The metrics of test rows, which are reported and select nothing."""
        return tuple(name for name, m in self.metrics.items() if m.tests)

    def checking(self) -> Program:
        """The program of the final check."""
        return self.check or self

    def uses(self, name: str) -> bool:
        """Whether the program is given this name's value, in its command or environment."""
        return name in command.names([word for words in self.texts().values() for word in words])

    def texts(self) -> dict[str, tuple[str, ...]]:
        """What names in braces may stand in, by key."""
        written = {f"write.{path}": (path, *file.texts()) for path, file in self.write.items()}
        variables = {f"environment.{name}": (text,) for name, text in self.environment.items()}
        return {"command": self.command, "resume_arguments": self.resume_arguments} | variables | written

    def require_rounds(self, rounds: int) -> None:
        """UserError unless a run of so many rounds ends with a report."""
        if rounds % self.every:
            up = -(-rounds // self.every) * self.every
            raise UserError(f"rounds must be a multiple of report_every, {self.every}, but got {rounds}; give {up}")

    def user_files(self) -> tuple[UserFile, ...]:
        """The user's code that fedtune itself runs: the reader, with what it imports from its folder."""
        return user_files.take(self.reader)[1] if self.reader else ()

    def scripts(self) -> dict[str, str]:
        """The hashes of the files that its figures depend on and that can be known, by name."""
        bases = {Path(file.base).name: Path(file.base) for file in self.write.values() if file.base}
        own = {file.name: file.sha256 for file in self.user_files()}
        return fingerprint.scripts(self.command, Path(self.folder), bases) | own

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the program in records: its file, its command, the commit of its folder, its scripts."""
        commit, sha256 = fingerprint.commit(Path(self.folder)), hashlib.sha256(self.text.encode()).hexdigest()
        found = {"command": list(self.command), "sha256": sha256, "scripts": self.scripts()}
        return found | ({"commit": commit} if commit else {})


def of_option(**given: Any) -> Program:
    """The program that --algo describes, as from a file with these keys; those that are None are left out."""
    raw = {key: value for key, value in given.items() if value is not None}
    return _program(raw, "--algo", json.dumps(raw), Path.cwd(), "flower" if "flower" in raw else "program")


def read(path: str | Path) -> Program:
    """The program that a file declares, or the run's copy of one that is gone; UserError in one line for a mistake."""
    file, path = user_files.of_content(path), Path(path)
    program = parse(file.content or b"", str(path), path.resolve().parent, path.stem)
    note = f"{path} is gone; the run's own copy of it is used, for the same folder"
    return program if path.exists() else replace(program, notes=(*program.notes, note))


def parse(content: bytes, path: str, base: Path, stem: str) -> Program:
    """The program of a file's content.

    path: for messages; base: the folder that its paths are relative to; stem: the program's name if it has none.
    """
    try:
        raw = tomllib.loads(text := content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: a program file must be TOML in UTF-8, but: {one_line(error)}") from None
    return _program(raw, path, text, base, stem)


def _program(raw: dict[str, Any], path: str, text: str, base: Path, stem: str) -> Program:
    notes = list[str]()
    with at(path):
        if "flower" in raw:
            raw, notes = flower.entries(raw, base)
        check = raw.pop("check", None)
        made = _made(raw, base, stem)
        if check is not None:
            made = replace(made, check=replace(_of_check(made, raw, check, base), path=path, text=text, notes=()))
    return replace(made, path=path, text=text, notes=(*made.notes, *notes))


KEYS = tuple(f.name for f in fields(Program))
KEYS = KEYS[: KEYS.index("check") + 1]


def _made(raw: Mapping[str, Any], base: Path, stem: str, of_check: bool = False) -> Program:
    require_known("key", raw, KEYS)
    known = {"metrics": metric.KEYS, "space": space_words.KEYS}
    made: Program = entries.checked(Program, {"name": stem, "folder": ".", **raw}, known, base)
    hyper, notes = space_words.hyperparameters(made.space, made.defaults)
    if clash := [name for name in hyper if name in made.metrics]:
        raise UserError(f"a metric and a hyperparameter must differ in name, but both have {clash[0]!r}")
    metrics = {n: metric.settled(n, m, made.file, made.reads_text) for n, m in made.metrics.items()}
    conditions = space_words.conditions(made.space, hyper)
    made = replace(made, hyper=hyper, conditions=conditions, metrics=metrics, notes=tuple(notes))
    made.require_rounds(made.rounds)
    _require_places(made)
    _require_names(made, of_check)
    _require_runs(made)
    _require_checkpoints(made)
    return _seeded(made, of_check)


def _of_check(made: Program, raw: Mapping[str, Any], check: Any, base: Path) -> Program:
    """The program of the final check: the same but for what [check] says."""
    if not entries.table("check", check):
        raise of_key("check", refused(check, "a table with what differs", "for example command"))
    require_known("key of check", check, CHECK_KEYS)
    whole = {**raw, "seed": made.seed, **check}
    with at("[check]"):
        if "environment" in check:
            whole["environment"] = {**raw.get("environment", {}), **entries.table("environment", check["environment"])}
        return _made(whole, base, made.name, of_check=True)


def _require_places(program: Program) -> None:
    """UserError for a file that trials would share, or a reader of none."""
    places = {f"write.{path}": path for path in program.write} | ({"file": program.file} if program.file else {})
    for key, path in places.items():
        if not program.isolate and not {"trial", "folder", "checkpoint"} & {*_names(key, [path], program)}:
            advice = 'two at once would write it; give for example "results/{trial}.csv"'
            raise of_key(key, refused(path, "another file for every trial", advice))
        if key != "file" and not path.endswith(config_files.KINDS):
            raise of_key(key, refused(path, f"a file that ends in {', '.join(config_files.KINDS)}"))
    if program.reader and not program.file:
        raise of_key("reader", refused(program.reader, "beside `file`, which it is given"))


def _names(key: str, words: Sequence[str], program: Program) -> list[str]:
    """The names in braces in these words; UserError for one that is not known."""
    with at(key):
        found = command.names(words)
    for name in found:
        if name not in (known := [*program.hyper, *command.OWN]):
            hint = f"declare it in [space] or [defaults], or write {{{{{name}}}}} for braces of the program's own"
            raise UserError(f"{unknown(f'name in {key}', name, known)}; {hint}")
    return found


def _require_names(program: Program, of_check: bool) -> None:
    """UserError for a hyperparameter that nothing uses, or a value that a shell would read as something else."""
    named = {key: _names(key, words, program) for key, words in program.texts().items()}
    used = {name for key, names in named.items() if key != "resume_arguments" for name in names}
    usual = dict.fromkeys(command.OWN, 0) | program.configuration({})
    for name, hp in program.hyper.items():
        with at("command"):
            for choice in (usual[name], *hp.choices):
                command.fill(program.command, usual | {name: choice})
        if name not in used and (name in program.space or not of_check):
            where = f"write {{{name}}} in the command, environment or [write]"
            raise UserError(f"every hyperparameter must be used, but {name} would change nothing; {where}")


def _seeded(program: Program, of_check: bool) -> Program:
    """The program with how it is seeded; where nothing says so, by {seed} if the command has it."""
    said, given = program.seed, program.uses("seed")
    if of_check and (said == "{seed}") != given:
        raise UserError("it must be seeded as the search is, but only one has {seed}; write it in both commands")
    if not said and not given:
        note = f"{program.name} is given no seed: the same configuration may give other figures each time"
        return replace(program, seed="none", notes=(*program.notes, note))
    if not said or given and said == "{seed}":
        return replace(program, seed="{seed}")
    if given or not re.fullmatch(r"[A-Za-z_]\w*", said):
        rule = "'{seed}' where the command has {seed}, else 'none' or the name of an environment variable"
        raise of_key("seed", refused(said, rule))
    return program


def _require_runs(program: Program) -> None:
    """UserError if the command is not found, or the script that it gives to Python."""
    first, *others = program.command
    place = str(Path(program.folder) / first) if "/" in first else first
    if "{" not in first and not shutil.which(place, path=program.environment.get("PATH")):
        advice = "install it, give its whole path, or make it executable"
        raise of_key("command", f"must begin with a program, but {first!r} is not found; {advice}")
    script = next((word for word in others[:1] if word.endswith(".py") and "{" not in word), None)
    if script and re.match(r"python[\d.]*$", Path(first).name) and not Path(program.folder, script).is_file():
        raise of_key("command", f"must name a script that is there, but {script!r} is not in {program.folder}")


def _require_checkpoints(program: Program) -> None:
    """UserError if a program that goes on from checkpoints does not say which rounds its figures are of."""
    if not program.uses("checkpoint"):
        if program.resume_arguments:
            raise of_key("resume_arguments", refused(program.resume_arguments, "beside {checkpoint} in the command"))
        return
    for name, m in program.metrics.items():
        if m.pattern and "round" not in re.compile(m.pattern).groupindex:
            rule = "a pattern that finds the number of the round too, as the program may go on from {checkpoint}"
            raise of_key(f"metrics.{name}.pattern", refused(m.pattern, rule, f"for example {PATTERN_WITH_ROUND}"))
