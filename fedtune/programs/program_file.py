"""Read and check a program file: TOML that says how a program of the user's is run and what it prints.

Everything in it is data.  Each mistake is refused in one line, with the file's line and key, before anything starts.
"""

from __future__ import annotations

import functools
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

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationInfo, with_config

from fedtune.core.errors import UserError, unknown
from fedtune.core.hyper import Hyperparameter
from fedtune.core.terminal import one_line
from fedtune.programs import command, config_files, fingerprint, flower, metric, space_words
from fedtune.programs.entries import Count, Flag, Seconds, Source, Text, Whole, Words, below, refused
from fedtune.programs.metric import ProgramMetric
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile

CHECK_KEYS = ("command", "folder", "environment", "write", "metrics", "file")
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", "/")  # ends of files that are no text
PATTERN_WITH_ROUND = "'round (?P<round>[0-9]+): acc ([0-9.]+)'"


def _folder(text: str, info: ValidationInfo) -> str:
    folder = str(below(text, info))
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
    user_files.take(path := str(below(text, info)))
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
        for name in config:
            if name not in self.hyper:
                raise unknown(f"hyperparameter of {self.name}", name, self.hyper)
        return {name: hp.check(config[name]) if name in config else hp.default for name, hp in self.hyper.items()}

    def selectable(self, selects_on_test: bool = False) -> dict[str, str]:
        """The metrics that a search may select by, with their directions; "" for one that was not said."""
        return {name: m.mode or "" for name, m in self.metrics.items() if selects_on_test or not m.tests}

    @property
    def reported(self) -> tuple[str, ...]:
        """The metrics of test rows, which are reported and select nothing."""
        return tuple(name for name, m in self.metrics.items() if m.tests)

    def require_selectable(self, name: str, selects_on_test: bool = False) -> None:
        """UserError unless a search may select by this metric."""
        if name not in self.metrics:
            raise unknown(f"metric of {self.name}", name, self.metrics)
        if name not in self.selectable(selects_on_test):
            why = "its split is test" if self.metrics[name].split else "the word test is in its name or pattern"
            raise Source.of(self.path, self.text).error(
                f"metrics.{name}",
                f"a search must not use test data, or test figures would no longer estimate new data, but got {name}: "
                f'{why}; say split = "validation" if it is measured on validation rows, or allow it by '
                "--selects-on-test",
            )

    def checking(self) -> Program:
        """The program of the final check."""
        return self.check or self

    def uses(self, name: str) -> bool:
        """Whether the program is given this name's value, in its command or environment."""
        return name in command.names([word for words in self.texts().values() for word in words])

    def texts(self) -> dict[str, tuple[str, ...]]:
        """What names in braces may stand in, by key."""
        found: dict[str, tuple[str, ...]] = {f"environment.{n}": (text,) for n, text in self.environment.items()}
        found |= {f"write.{path}": (path, *file.texts()) for path, file in self.write.items()}
        return {"command": self.command, "resume_arguments": self.resume_arguments} | found

    def require_rounds(self, rounds: int, said: str) -> None:
        """UserError unless a run of so many rounds ends with a report.  said: who asks for them."""
        if rounds % self.every:
            up = -(-rounds // self.every) * self.every
            raise UserError(
                f"{said}: rounds must be a multiple of report_every, {self.every}, so that a run ends with a "
                f"report, but got {rounds}; give {up}"
            )

    def user_files(self) -> tuple[UserFile, ...]:
        """The user's code that fedtune itself runs: the reader, with what it imports from its folder."""
        return user_files.take(self.reader)[1] if self.reader else ()

    def scripts(self) -> dict[str, str]:
        """The hashes of the files that its figures depend on and that can be known, by name."""
        named = {Path(file.base).name: Path(file.base) for file in self.write.values() if file.base}
        own = {file.name: file.sha256 for file in self.user_files()}
        return fingerprint.scripts(self.command, Path(self.folder), named) | own

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the program in records: its file, command, commit and interpreter."""
        found = fingerprint.of(self.command, Path(self.folder), self.environment.get("PATH"))
        return found | {"sha256": hashlib.sha256(self.text.encode()).hexdigest(), "scripts": self.scripts()}


def of_option(**entries: Any) -> Program:
    """The program that --algo describes, as from a file with these entries; those that are None are left out."""
    raw = {key: value for key, value in entries.items() if value is not None}
    return _program(raw, "--algo", json.dumps(raw), Path.cwd(), "flower" if "flower" in raw else "program")


def read(path: str | Path) -> Program:
    """The program that a file declares, or the run's copy of one that is gone; UserError in one line for a mistake."""
    file, path = user_files.of_content(path), Path(path)
    try:
        text = (file.content or b"").decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: a program file must be UTF-8, but: {error}") from None
    program = parse(text, str(path), path.resolve().parent, path.stem)
    note = f"{path} is gone; the run's own copy of it is used, for the same folder"
    return program if path.exists() else replace(program, notes=(*program.notes, note))


def parse(text: str, path: str, base: Path, stem: str) -> Program:
    """The program of a file's text.

    path: for messages; base: the folder that its paths are relative to; stem: the program's name if it has none.
    """
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        said = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is nested too deeply"
        at = re.search(r"at line (\d+)", said)
        line = int(at[1]) if at else text.rstrip().count("\n") + 1
        raise UserError(f"{path}:{line}: a program file must be TOML, but: {one_line(said)}") from None
    return _program(raw, path, text, base, stem)


def _program(raw: dict[str, Any], path: str, text: str, base: Path, stem: str) -> Program:
    source, notes = Source.of(path, "" if path.startswith("--") else text), list[str]()
    if "flower" in raw:
        raw, notes = flower.entries(raw, source, base)
    check = raw.pop("check", None)
    made = _made(raw, source, base, stem)
    if check is not None:
        made = replace(made, check=replace(_of_check(made, raw, check, source, base), path=path, text=text, notes=()))
    return replace(made, path=path, text=text, notes=(*made.notes, *notes))


_NAMES = [f.name for f in fields(Program)]
KEYS = tuple(_NAMES[: _NAMES.index("check") + 1])


@functools.cache
def _type() -> TypeAdapter[Program]:
    return TypeAdapter(Program)


def _known(*above: str) -> Sequence[str]:
    """The names that a table may have."""
    return {"metrics": metric.KEYS, "space": space_words.KEYS}[above[0]] if above else KEYS


def _made(raw: Mapping[str, Any], source: Source, base: Path, stem: str) -> Program:
    if strange := [name for name in raw if name not in KEYS]:
        raise source.error(strange[0], unknown("key", strange[0], KEYS))
    made: Program = source.checked(_type(), {"name": stem, "folder": ".", **raw}, _known, base)
    hyper, notes = space_words.hyperparameters(made.space, made.defaults, source)
    if clash := [name for name in hyper if name in made.metrics]:
        words = f"a metric and a hyperparameter must differ in name, but both have {clash[0]!r}"
        raise source.error(f"metrics.{clash[0]}", words)
    metrics = {n: metric.settled(n, m, made.file, made.reads_text, source) for n, m in made.metrics.items()}
    conditions = space_words.conditions(made.space, hyper, source)
    made = replace(made, hyper=hyper, conditions=conditions, metrics=metrics, notes=tuple(notes))
    made.require_rounds(made.rounds, source.place("rounds"))
    _require_places(made, source)
    _require_names(made, source)
    made = _seeded(made, source)
    _require_runs(made, source)
    _require_checkpoints(made, source)
    return made


def _of_check(made: Program, raw: Mapping[str, Any], check: Any, source: Source, base: Path) -> Program:
    """The program of the final check: the same but for what [check] says."""
    if not source.table("check", check):
        raise source.error("check", refused(check, "a table with what differs", "for example command"))
    for name in check:
        if name not in CHECK_KEYS:
            raise source.error(f"check.{name}", unknown("key of check", name, CHECK_KEYS))
    whole = {**raw, "seed": made.seed, **check}
    if "environment" in check:
        given = source.table("check.environment", check["environment"])
        whole["environment"] = {**raw.get("environment", {}), **given}
    return _made(whole, source._replace(of_check=frozenset(check)), base, made.name)


def _require_places(program: Program, source: Source) -> None:
    """UserError for a file that trials would share, or a reader of none."""
    places = {f"write.{path}": path for path in program.write} | ({"file": program.file} if program.file else {})
    for key, path in places.items():
        if not program.isolate and not {"trial", "folder", "checkpoint"} & {*_names(key, [path], program, source)}:
            advice = 'two at once would write it; give for example "results/{trial}.csv"'
            raise source.error(key, refused(path, "another file for every trial", advice))
        if key != "file" and not path.endswith(config_files.KINDS):
            raise source.error(key, refused(path, f"a file that ends in {', '.join(config_files.KINDS)}"))
    if program.reader and not program.file:
        raise source.error("reader", refused(program.reader, "beside `file`, which it is given"))


def _names(key: str, words: Sequence[str], program: Program, source: Source) -> list[str]:
    """The names in braces in these words; UserError for one that is not known."""
    try:
        found = command.names(words)
    except UserError as error:
        raise source.error(key, error) from None
    for name in found:
        if name not in (known := [*program.hyper, *command.OWN]):
            hint = f"declare it in [space] or [defaults], or write {{{{{name}}}}} for braces of the program's own"
            raise source.error(key, f"{unknown(f'name in {source.key(key)}', name, known)}; {hint}")
    return found


def _require_names(program: Program, source: Source) -> None:
    """UserError for a hyperparameter that nothing uses, or a value that a shell would read as something else."""
    named = {key: _names(key, words, program, source) for key, words in program.texts().items()}
    used = {name for key, names in named.items() if key != "resume_arguments" for name in names}
    key = source.key("command")
    usual = dict.fromkeys(command.OWN, 0) | program.configuration({})
    for name, hp in program.hyper.items():
        try:
            for choice in (usual[name], *hp.choices):
                command.fill(program.command, usual | {name: choice})
        except UserError as error:
            raise source.error("command", f"{key}: {error}") from None
        if name not in used and (name in program.space or key == "command"):
            table = "space" if name in program.space else "defaults"
            where = "command, environment or [write]" if key == "command" else "[check]'s command"
            rule = f"{key} must use every hyperparameter, but {name} would change nothing; write {{{name}}} in {where}"
            raise source.error(f"{table}.{name}", rule)


def _seeded(program: Program, source: Source) -> Program:
    """The program with how it is seeded; where nothing says so, by {seed} if the command has it."""
    said, given = program.seed, program.uses("seed")
    if source.of_check and (said == "{seed}") != given:
        words = "the final check must be seeded as the search is, but only one has {seed}; write it in both"
        raise source.error("command", words)
    if not said and not given:
        note = f"{program.name} is given no seed: the same configuration may give other figures each time"
        return replace(program, seed="none", notes=(*program.notes, note))
    if not said or given and said == "{seed}":
        return replace(program, seed="{seed}")
    if given:
        raise source.error("seed", refused(said, "'{seed}', which it is given"))
    if not re.fullmatch(r"[A-Za-z_]\w*", said):
        rule = "'none' or the name of an environment variable, where {seed} is not in the command"
        raise source.error("seed", refused(said, rule))
    return program


def _require_runs(program: Program, source: Source) -> None:
    """UserError if the command is not found, or the script that it gives to Python."""
    first, *others = program.command
    place = str(Path(program.folder) / first) if "/" in first else first
    if "{" not in first and not shutil.which(place, path=program.environment.get("PATH")):
        advice = "install it, give its whole path, or make it executable"
        raise source.error("command", f"must begin with a program, but {first!r} is not found; {advice}")
    script = next((word for word in others[:1] if word.endswith(".py") and "{" not in word), None)
    if script and re.match(r"python[\d.]*$", Path(first).name) and not Path(program.folder, script).is_file():
        words = f"must name a script that is there, but {script!r} is not in {program.folder}; say its folder"
        raise source.error("command", words)


def _require_checkpoints(program: Program, source: Source) -> None:
    """UserError if a program that goes on from checkpoints does not say which rounds its figures are of."""
    if program.resume_arguments and not program.uses("checkpoint"):
        advice = "write {checkpoint} in the command: a folder for it"
        raise source.error("resume_arguments", refused(program.resume_arguments, "beside {checkpoint}", advice))
    for name, m in program.metrics.items() if program.uses("checkpoint") else ():
        if m.pattern and "round" not in metric.compiled(m.pattern).groupindex:
            raise source.error(
                f"metrics.{name}.pattern",
                f"with {{checkpoint}} a pattern must also find the number of the round, or rounds could be counted "
                f"wrongly after the program goes on, but got {m.pattern!r}; for example {PATTERN_WITH_ROUND}",
            )
