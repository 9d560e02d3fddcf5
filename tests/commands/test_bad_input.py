"""Bad input gets one line, the rule, what came and what would do; exit status 2; nothing started, nothing left."""

import json
import signal

import pytest
from support.commands import refusal

from fedtune import __main__ as console
from fedtune.analysis import reproduce
from fedtune.commands import search
from fedtune.core.about import FORMAT
from fedtune.core.errors import UserError

FILES = {
    "broken.py": "SPACE = [",
    "empty.py": "SPACE = {}",
    "grid.py": "from ray import tune\nSPACE = {'lam': tune.grid_search([1.0, 2.0])}",
    "mixed.py": "from ray import tune\nSPACE = {'lam': tune.grid_search([1.0]), 'lr': tune.uniform(0.1, 0.2)}",
    "outside.py": "from ray import tune\nSPACE = {'lam': tune.uniform(0.1, 1000)}",
    "when.py": "from ray import tune\nfrom fedtune import when\n"
    "SPACE = {'optimizer': tune.choice(['sgd', 'adam']), "
    "'momentum': when(tune.uniform(0, 0.9), optimizer='sgd')}",
    "exits.py": "import sys; sys.exit()",
    "raises.py": "raise BaseException('x')",
    "keys.py": "SPACE = {None: 1}",
    "numbers.py": "SPACE = [1, 2]",
    "no-list.py": "SPACE = {'lam': {'grid_search': 3}}",
    "mixed-types.py": "from ray import tune\nSPACE = {'lam': tune.choice([1.0, 'strong'])}",
    "real.py": "from ray import tune\nSPACE = {'components': tune.uniform(1, 9)}",
    "large.py": "from ray import tune\nSPACE = {n: tune.grid_search([*range(1, 1001)]) for n in ('lam', 'batch')}",
    "circle.py": "from ray import tune\nfrom fedtune import when\n"
    "SPACE = {'lam': when(tune.uniform(1, 2), lr=0.1), 'lr': when(tune.uniform(0.1, 0.2), lam=1.0)}",
    "whenever.py": "from ray import tune\nfrom fedtune import when\nSPACE = {'lam': when(tune.uniform(1, 2), lrr=0.1)}",
    "structural.py": "from ray import tune\nSPACE = {'projection': tune.choice([10, 20])}",
    "plain-file": "",
    "phones.csv": "client,slow\n" + "".join(f"{k},1\n" for k in range(19)),
    "nobody.csv": "slow,lag\n1,0",
    "negative.csv": "client,slow\n0,-1",
    "words.csv": "client,up_mbps\n0,fast",
    "lags.csv": "client,lag\n0,-0.1",
    "twice.csv": "client,slow\n0,1\n0,2",
    "short.csv": "client,slow\n0",
    "columns.csv": "client,speed\n0,1",
    "empty.csv": "client,slow\n",
    "broken.yaml": "algorithm: [",
    "other.yaml": "a: 1",
    "list.yaml": "algorithm: gfpl\nscenario: digits-w4\nhyperparameters: {}\noverrides: null",
}
GFPL, TWICE = "--algo gfpl ", "--choose-seeds 2 --seeds-per-trial 2"

# arguments of a search -> what its one line says
CASES = {
    "": "--algo is needed",
    "--algo gfpll": "unknown algorithm 'gfpll': did you mean 'gfpl'",
    GFPL + "--scenario digits-w5": "unknown scenario 'digits-w5': did you mean 'digits-w4'",
    GFPL + "--space defalt": "unknown search space of gfpl 'defalt': did you mean 'default'",
    GFPL + "--vary lrr": "unknown hyperparameter of gfpl 'lrr': did you mean 'lr'",
    GFPL + "--vary lam": "lam is searched already; give --vary its range, for instance lam=0.05..100 log",
    GFPL + "--vary lr --set lr=0.1": "but lr is in --set; leave it out",
    GFPL + "--vary lr_decay=0.95": "--vary needs NAME or NAME=LOW..HIGH, or 'NAME=LOW..HIGH log', but got '0.95'",
    GFPL + "--vary lr_decay=0.95..7": "lr_decay must be a number in 0.9..1, but got 7",
    GFPL + "--vary lr_decay=0.95..0.92": "lr_decay needs a range low < high",
    GFPL + "--vary order=1..2": "--vary needs NAME or",
    GFPL + "--vary lr=0.1..0.2 --vary lr": "--vary names each hyperparameter once, but lr comes several times",
    GFPL + "--vary lr --space paper": "--vary is for a space of ranges, but this space is a grid",
    GFPL + "--scheduler ahsa": "unknown scheduler 'ahsa': did you mean 'asha'",
    GFPL + "--searcher tep": "unknown searcher 'tep': did you mean 'tpe'",
    GFPL + "--dataset digit": "unknown data set 'digit': did you mean 'digits'",
    GFPL + "--model cnn9": "unknown model 'cnn9': did you mean 'cnn8'",
    GFPL + "--partition dirichlt": "unknown partition 'dirichlt': did you mean 'dirichlet'",
    GFPL + "--evaluation personl": "unknown evaluation rule 'personl': did you mean 'personal'",
    GFPL + "--executor stak": "invalid choice: 'stak'",
    GFPL + "--set lamb=1": "unknown hyperparameter of gfpl 'lamb': did you mean 'lam'",
    GFPL + "--set lam": "--set needs NAME=VALUE, but got 'lam'",
    GFPL + "--set lam=": "--set needs NAME=VALUE",
    GFPL + "--set lam=strong": "lam must be a number in 0.05..100 log, or 0.0, but got 'strong'",
    GFPL + "--set lam=nan": "but got nan",
    GFPL + "--set components=2.5": "components must be a whole number in 1..16, but got 2.5",
    GFPL + "--set linkage=chain": "linkage must be one of complete | ball | single, but got 'chain'",
    GFPL + "--set clip=2": "clip must be one of False | True, but got 2",
    GFPL + "--momentum 1": "momentum must be a number in 0..0.99, but got 1",
    GFPL + "--clients 0": "clients must be in 1..1000000, but got 0",
    GFPL + "--clients many": "clients must be a whole number, but got 'many'",
    GFPL + "--scenario digits-w4 --ways 11": "at most the 10 classes of digits that are in use, but got 11",
    GFPL + "--set clients=5": "--set is for what has no option of its own, but got clients; give --clients",
    GFPL + "--scenario digits-w4 --shots 500": "class ",
    GFPL + "--partition natural": "needs a data set with the owner of each row (celeba), but got digits",
    GFPL + "--share 0": "share must be in 1e-09..1, but got 0",
    GFPL + "--set skip_classes=9": "skip_classes must be 0 to 8",
    GFPL + "--partition fedgen --clients 200": "200 clients with at least 10 rows each need 2000 rows, but",
    "--algo fedpa --preset as_publishd": "unknown preset of fedpa 'as_publishd': did you mean 'as_published'",
    GFPL + "--participation 0": "participation must be a number in 1e-06..1 log, but got 0",
    GFPL + "--val-share 0.5 --test-share 0.5": "leave training rows, but got 0.5 and 0.5",
    GFPL + "--features 5": "an equiangular frame of 10 classes needs at least 9 dimensions, but got 5",
    GFPL + "--dataset mnist --model cnn8 --data-dir {tmp}": "--download",
    GFPL + "--model mcmahan-cnn": "model 'mcmahan-cnn' does not fit images of 1×8×8",
    GFPL + "--seed -1": "--seed: must be a whole number in 0..4294964295, but got '-1'",
    "--algo local --evaluation global": "evaluation rule 'global' scores one global model, but under local body, head",
    "--algo fedper --evaluation pooled": "under fedper head stays with each client",
    GFPL + "--space {tmp}/none.py": "there is no file",
    GFPL + "--space {tmp}/broken.py": "/broken.py:1 is not valid Python: '[' was never closed",
    GFPL + "--space {tmp}/empty.py": "is empty",
    GFPL + "--space {tmp}/mixed.py": "a space is a grid or has ranges, not both",
    GFPL + "--space {tmp}/outside.py": "lam must be a number in 0.05..100 log, or 0.0, but got 1000",
    GFPL + "--space {tmp}/grid.py --searcher tpe": "a grid takes --searcher grid, or a space with ranges, but got",
    GFPL + "--searcher grid": "a grid needs a list of values, but lam is the range",
    GFPL + "--scheduler pbt --searcher tpe": "use --searcher random",
    GFPL + "--scheduler pbt --space {tmp}/structural.py": "projection changes their shape",
    "--algo local --set lr=0.1 --set momentum=0 --set local_epochs=1": "fixed are lr, momentum, local_epochs",
    GFPL + "--trials 0": "must be a whole number in 1..1000000, but got '0'",
    GFPL + "--cpus-per-trial 0": "--cpus-per-trial: must be a number above 0, at most 1,000,000,000, but got '0'",
    GFPL + "--gpus-per-trial 64": "--gpus-per-trial must be at most",
    GFPL + "--gpus-per-trial auto": "--gpus-per-trial must be at most 0, the GPUs of this machine",
    GFPL + "--gpus-per-trial 1.5": "a fraction below 1 or a whole number",
    GFPL + "--choose-seeds 0": "--choose-seeds: must be a whole number in 1..1000, but got '0'",
    GFPL + "--choose-seeds 2 --scheduler pbt": "pbt changes configurations during training; give",
    GFPL + TWICE + " --objective seconds": "a trial's seconds are those of all its seeds",
    GFPL + TWICE + " --budget-unit seconds --budget 9": "those of all its seeds; give --choose-seeds 1",
    GFPL + "--grace 99": "--grace must be a whole number, at most the 30 rounds of a trial, but got 99",
    GFPL + "--grace 2.5": "--grace must be a whole number, at most the 30 rounds of a trial, but got 2.5",
    GFPL + "--objective accuracy": "unknown objective 'accuracy'",
    GFPL + "--objective test_acc": "a search must not use test data, or test figures would no longer estimate new data",
    GFPL + "--objective val_acc,test_f1": "but got test_f1; use val_f1",
    GFPL + "--objective train_loss": "unknown objective 'train_loss'",
    GFPL + "--objective val_acc,val_loss,val_f1,comm_mb,seconds": "--objective takes one to 4 metrics, separated by",
    GFPL
    + "--objective val_acc,val_acc": "--objective takes one to 4 metrics, separated by commas and each once, but got",
    GFPL + "--objective val_loss:max": "the lowest val_loss is the best, but got 'val_loss:max'",
    GFPL + "--objective val_loss:least": "an objective's direction is max or min, but got 'val_loss:least'",
    GFPL + "--subject-to comm_mb<20": "--subject-to takes METRIC<=NUMBER or METRIC>=NUMBER, but got 'comm_mb<20'",
    GFPL + "--subject-to comm_mb<=nan": "--subject-to takes METRIC<=NUMBER or METRIC>=NUMBER, but got",
    GFPL + "--subject-to comm_mb<=20,test_acc>=0.5": "a search must not use test data",
    GFPL + "--subject-to comm<=20": "unknown metric of a constraint 'comm'",
    GFPL + "--subject-to comm_mb<=20 --searcher cmaes": "--subject-to needs one of tpe, random, gp, nsga2, grid, and",
    GFPL + "--subject-to comm_mb<=20 --scheduler pbt": "and a scheduler other than pbt, but got --scheduler pbt",
    GFPL + "--devices fast": "unknown profile of devices 'fast': known are alike, exponential, lognormal, none",
    GFPL
    + "--devices {tmp}/phones.csv --clients 20": "phones.csv must have a row for every client, but lacks 1; the first",
    GFPL + "--devices {tmp}/none.csv": "cannot be read",
    GFPL
    + "--devices {tmp}/nobody.csv": "nobody.csv must have the columns client and any of slow, up_mbps, down_mbps, lag",
    GFPL + "--devices {tmp}/columns.csv": "but has 'client,speed', 1 rows",
    GFPL + "--devices {tmp}/empty.csv": "but has 'client,slow', 0 rows",
    GFPL + "--devices {tmp}/negative.csv": "slow in negative.csv must be a number above 0, but client 0 has '-1'",
    GFPL + "--devices {tmp}/words.csv": "up_mbps in words.csv must be a number above 0, but client 0 has 'fast'",
    GFPL + "--devices {tmp}/lags.csv": "lag in lags.csv must be a number 0 or more, but client 0 has '-0.1'",
    GFPL + "--devices {tmp}/twice.csv": "must be another client's, with all columns, but got '0,2'",
    GFPL + "--devices {tmp}/short.csv": "each row of short.csv must be another client's, with all columns, but got '0'",
    GFPL + "--selection ort": "unknown choice of selection 'ort': did you mean 'oort'?",
    GFPL + "--selection oort --set offered=9": "offered acts only with --selection power-of-choice, but got 9 without",
    GFPL + "--devices alike --set speed_spread=1": "speed_spread acts only with --devices lognormal, but got 1 without",
    GFPL + "--set mbps_spread=0.3": "mbps_spread acts only with --devices lognormal, but got 0.3 without it",
    "--algo fedavg --epsilon 8": "epsilon acts only with --privacy client, but got 8 without it",
    "--algo fedavg --population 1000": "population acts only with --privacy client, but got 1000 without it",
    GFPL + "--lost-share 1.5": "lost_share must be in 0..1, but got 1.5",
    GFPL + "--over-ask 0.5": "over_ask must be in 1..100, but got 0.5",
    GFPL + "--devices alike --deadline -1": "deadline must be in 0..1e+12, but got -1",
    GFPL
    + "--over-ask 1.3 --set sampling=poisson": "sampling poisson needs clients that take part whatever the others do",
    GFPL + "--selection power-of-choice --set sampling=poisson": "but got selection power-of-choice: by their losses",
    "--algo fedavg --selection oort --privacy client": "but got selection oort: by their losses",
    "--algo fedavg --over-ask 1.3 --privacy client": "privacy needs clients that take part whatever the others do",
    "--algo fedavg --selection power-of-choice --privacy client": "but got selection power-of-choice: by their losses",
    "--algo fedavg --deadline 9 --privacy client": "do not depend on clients' rows, but got local_steps 0",
    GFPL + "--objective sim_seconds": "device seconds need devices, but got objective sim_seconds without; give",
    GFPL
    + "--subject-to sim_seconds<=9": "device seconds need devices, but got metric of a constraint sim_seconds without",
    GFPL + "--budget-unit sim_seconds --budget 9": "a budget in device seconds needs devices, but gfpl has none",
    GFPL
    + "--objective val_acc,comm_mb --searcher cmaes": "several objectives need one of tpe, random, gp, nsga2, grid",
    GFPL + "--objective val_acc,comm_mb --scheduler pbt": "several objectives need one of tpe, random, gp, nsga2, grid",
    GFPL + "--budget-unit bytes": "invalid choice: 'bytes'",
    GFPL + "--budget-unit mb": "--budget is the length of a trial with --budget-unit mb, seconds or",
    GFPL + "--budget 5": "--budget is the length of a trial with --budget-unit mb, seconds or",
    GFPL + "--budget-unit seconds --budget -5": "must be a number above 0, at most 1,000,000,000, but got '-5'",
    GFPL + "--budget-unit mb --budget 5 --grace 6": "--grace must be at most the --budget of 5, but got 6",
    GFPL + "--space {tmp}/when.py --searcher cmaes": "a space with conditions needs one of tpe, random, gp, nsga2",
    GFPL + "--space {tmp}/when.py --scheduler pbt": "a space with conditions needs one of tpe, random, gp, nsga2",
    GFPL + "--space {tmp}/circle.py": "depend on one another",
    GFPL + "--space {tmp}/whenever.py": "unknown hyperparameter of gfpl in space",
    GFPL + "--logger neptune": "--logger unknown choice 'neptune': known are mlflow, tensorboard, wandb",
    GFPL + "--device tpu": "device must be cpu, or cuda",
    GFPL + "--storage-path {tmp}/plain-file": "--storage-path must be a folder that can be written to",
    GFPL + "--storage-path s3://bucket/x": "--storage-path must be a folder",
    GFPL + "--storage-path {tmp} --name taken": "exists; give another --name",
    GFPL + "--name a/b": "--name must be a plain folder name of letters, digits",
    GFPL + "--address 127.0.0.1:1": "nobody answers at 127.0.0.1:1",
    GFPL + "--address ray://127.0.0.1:1": "nobody answers at 127.0.0.1:1",
    GFPL + "--address nowhere": "--address must be auto, host:port or ray://host:port, but got 'nowhere'",
    GFPL + "--colour red": "unknown option '--colour': did you mean '--cohort'? all ",
    GFPL + "--scenario qqqqqqqqqq": "are in fedtune list scenarios",
    GFPL + "--seed 4294967296": "must be a whole number in 0..4294964295, but got '4294967296'",
    GFPL + "--final-seeds 100000": "must be a whole number in 0..1000, but got",
    GFPL + "--seeds-per-trial 100000": "must be a whole number in 1..1000, but got",
    GFPL + "--clients 1e30": "clients must be in 1..1000000, but got",
    GFPL + "--space {tmp}/exits.py": "exits.py:1: SystemExit",
    GFPL + "--space {tmp}/raises.py": "raises.py:1: BaseException: x",
    GFPL + "--space {tmp}/keys.py": "a space names hyperparameters by text, but ",
    GFPL + "--space {tmp}/numbers.py": "a space is a dict of hyperparameters, or a list of dicts, but ",
    GFPL + "--space {tmp}/no-list.py": "grid_search needs a list of values, but that of lam in ",
    GFPL + "--space {tmp}/mixed-types.py": "lam must be a number in 0.05..100 log, or 0.0, but got 'strong'",
    GFPL + "--space {tmp}/real.py": "components takes whole numbers, but its range 1.0..9.0 has others",
    GFPL + "--space {tmp}/large.py": "a grid must have at most 10,000 points, but all combinations of the space",
    GFPL + "--searcher=": "argument --searcher must not be empty; leave it out for the default",
    GFPL + "--cpus-per-trial=--": "argument --cpus-per-trial must be a value, but got --",
    "search --space=-- --trials 1": "argument --space must be a value, but got --",
    GFPL + "--name=-x": "(not first), at most 100, but got '-x'",
    GFPL + "--name " + "a" * 101: "at most 100, but got 'aaa",
    GFPL + "--storage-path {tmp}/" + "a" * 300: "cannot be used: File name too long",
    GFPL + "--address http://[::1": "--address must be auto, host:port or ray://host:port, but got 'http://[::1'",
    GFPL + "--address " + "a" * 64 + ".b:6379": "--address must be auto, host:port or ray://host:port, but got",
}

BEGUN = {
    "format": FORMAT,
    "options": {"algo": "gfpl"},
    "scenario": {},
    "defaults": {},
    "scheduler": "asha",
    "searcher": "tpe",
}
# runs in folders of their names, with this as their run.json; all but the first are of no use to anybody
RUNS = {
    "over": BEGUN | {"state": "finished"},
    "by-pbt": BEGUN | {"state": "finished", "scheduler": "pbt", "searcher": "random"},
    "by-grid": BEGUN | {"state": "finished", "searcher": "grid"},
    "unfinished": BEGUN | {"state": "interrupted"},
    "at-work": BEGUN | {"state": "running"},
    "no-options": {"format": FORMAT, "state": "finished", "scenario": {}, "defaults": {}},
    "old": BEGUN | {"state": "finished", "versions": {"fedtune": "0.2.0"}},
    "a-list": [],
    "wrong": BEGUN | {"state": "finished", "seed": [1]},
    "cut": None,
}
READERS = ("status", "report", "watch", "resume", "replay")

OTHER_CASES = {
    "serch": "unknown command 'serch': did you mean 'search'",
    "run --config {tmp}/none.yaml": "cannot be read",
    "run --config {tmp}/broken.yaml": "cannot be read",
    "run --config {tmp}/other.yaml": "needs algorithm, scenario, hyperparameters",
    "run --algo local --output {tmp}/plain-file": "--output needs a new file",
    "run --algo local --set lr=2": "lr must be a number in",
    "run --algo fedprox --set q=2": "are in fedtune list fedprox and fedtune run --help-all",
    "run --algo gfpll": "unknown algorithm 'gfpll'",
    "list gfpll": "'gfpll'",
    "status": "the following arguments are required: RUN",
    "status {tmp}/cut": "run.json is missing or damaged",
    "status {tmp}/a-list": "run.json is missing or damaged",
    "compare": "--algos is needed, but none was given",
    "compare --algos gfpll": "unknown algorithm 'gfpll': did you mean 'gfpl'",
    "compare --algos local,local": "--algos names each algorithm once, but got local,local",
    "compare --algos fedavg[lr=0.1],fedavg[lr=0.1]": "--algos names each algorithm once",
    "compare --algos local,fedavg[lr]": "fedavg[…] needs NAME=VALUE, but got 'lr'",
    "compare --algos local,fedavg[momentun=0.5]": "unknown hyperparameter of fedavg 'momentun': did you mean",
    "compare --algos local,fedavg[lr=0.1] --set lr=0.2": "lr is given for all, too; leave one out",
    "compare --algos fedavg,fedavg[test_shots=3]": "test_shots in fedavg[test_shots=3] is the setting's, for all",
    "compare --algos local,": "unknown algorithm ''",
    "compare --algos local --algo gfpl": "unknown option '--algo': did you mean '--algos'",
    "compare --algos local --final-seeds=3": "unknown option '--final-seeds'",
    "compare --algos local --top-k none": "must be a whole number in 1..1000, but got 'none'",
    "compare --algos local --trial 3 --unheard-of": "option '--trial': did you mean '--trials' or '--trials-drawn'?",
    "compare --algos local --scenario digits-w5": "unknown scenario 'digits-w5'",
    "compare --algos local --storage-path {tmp} --name taken": "exists; give another --name",
    "compare --algos local --storage-path {tmp} --name a/b": "(not first), at most 100, but got 'a/b'",
    "compare --algos gfpl,fedavg --scenario digits-fedgen": "evaluation rule 'pooled' scores one global model",
    "compare --algos gfpl,local --space paper": "a fair comparison gives every algorithm the same number of trials",
    "compare --algos local --set lam=1": "unknown hyperparameter of local 'lam'",
    "compare --algos gfpl --baselines lokal": "did you mean 'local'",
    "compare --algos gfpl,local --scheduler pbt": "--scheduler pbt changes hyperparameters during training",
    "compare --algos fedavg --choose-seeds 2 --top-k 2": "names one configuration, but --top-k 2 lets fresh seeds",
    "compare --algos fedavg --seeds-per-trial 2 --objective seconds": "those of all its seeds; give --choose-seeds 1",
    "reproduce gpfl-table1": "unknown table 'gpfl-table1': did you mean 'gfpl-table1'",
    "reproduce gfpl-table1 --dataset digit": "unknown data set 'digit': did you mean 'digits'",
    "reproduce gfpl-fig6 --dataset digits --seeds 0": "must be a whole number in 1..1000, but got '0'",
    "reproduce gfpl-fig6 --dataset digits --preset as_writen": "unknown preset 'as_writen'",
    "reproduce gfpl-fig6 --dataset digits --storage-path {tmp} --name taken": "exists; give another --name",
    "reproduce gfpl-table1 --data-dir {tmp}": "or another data set in its place: --dataset fashion-mnist, digits",
    "report": "the following arguments are required: RUN",
    **{f"{c} {{tmp}}/no": "no is not a study folder: it does not exist" for c in READERS},
    **{f"{c} {{tmp}}/plain-file": "plain-file is not a study folder: it has none of" for c in READERS},
    **{f"{c} {{tmp}}": "it has none of run.json, compare.json, reproduce.json" for c in READERS},
    "report {tmp}/over {tmp}/unfinished": "a report on several runs needs -o, but 2 runs were given without it",
    "report {tmp}/over -o {tmp}/plain-file": "a report overwrites only an earlier report",
    "run --algo local --save {tmp}/plain-file": "--save needs a new file in a folder that exists",
    "resume {tmp}/half-comparison": "is not a study folder: compare.json is missing or damaged",
    "resume": "the following arguments are required: RUN",
    "resume {tmp}/no-options": "it does not say how the search was started",
    "resume {tmp}/over": "is finished; --trials +N adds trials",
    "resume {tmp}/unfinished --max-concurrent 0": "must be a whole number in 1..1000000",
    "resume {tmp}/unfinished --address nowhere": "--address must be auto, host:port or ray://host:port",
    "resume {tmp}/over --name other": "--name is for the folder of more --trials or --rounds",
    "resume {tmp}/over --trials 2 --top 1": "--top says how many trials get more --rounds",
    "resume {tmp}/over --trials 0": "must be a whole number in 1..1000000",
    "resume {tmp}/over --trials 2": "its trials.parquet, rounds.parquet and study.journal, but",
    "resume {tmp}/by-pbt --trials 2": "only a search by tpe, random, gp, cmaes, nsga2 can be extended, but",
    "resume {tmp}/by-grid --rounds 2": "used grid; start a new search",
    "resume {tmp}/unfinished --trials 2": "its trials.parquet, rounds.parquet and study.journal, but",
    "resume {tmp}/at-work --trials 2": "only a finished search can be extended, but",
    "resume {tmp}/over --trials 2 --rounds 2": "not allowed with argument",
    "replay {tmp}/over": "only a search that has suggestions and rounds can be repeated, but",
    "status {tmp}/" + "a" * 300: "is missing or damaged (File name too long)",
    "report {tmp}/over -o " + "a" * 300 + ".html": "cannot be used: File name too long",
    **{
        f"{command} {{tmp}}/old": "old/run.json is of fedtune 0.2.0; run it again, or use the fedtune that wrote it"
        for command in ("status", "report", "resume", "replay", "resume --trials 2")
    },
    "status {tmp}/wrong": "run.json is missing or damaged (its seed: should be a valid integer)",
    "run --config {tmp}/list.yaml": "list.yaml cannot be read: its overrides: should be a valid dictionary",
    "partition --partition {tmp}/keys.py:f": "your own partition must be FILE.npz with arrays row, client, split",
    "run --algo fedavg --save {tmp}/loop.pt": "--save needs a new file in a folder that exists",
    "run --algo fedavg --output {tmp}/loop.pt": "--output needs a new file in a folder that exists",
    "run --algo fedavg --output {tmp}/both --save {tmp}/taken/../both": "--output and --save are two files, but both",
    "partition -o {tmp}/loop.html": "--output needs a new file *.html in a folder that exists",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "run.json").touch()
    for name, record in RUNS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{" if record is None else json.dumps(record))
    for link in ("loop.pt", "loop.html"):
        (tmp_path / link).symlink_to(link)
    (tmp_path / "half-comparison").mkdir()
    (tmp_path / "half-comparison" / "compare.json").write_text(json.dumps(BEGUN | {"options": {"algos": "local"}}))
    return tmp_path


ALL = {f"search {a}": line for a, line in CASES.items()} | OTHER_CASES


@pytest.mark.parametrize("command", ALL)
@pytest.mark.usefixtures("nothing_starts")
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(command, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    main, line = console.main, command.replace("{tmp}", str(folder))
    if line.startswith("reproduce "):
        main, line = reproduce.main, line.removeprefix("reproduce ")
    assert ALL[command] in refusal(main, line, capsys)
    assert sorted(folder.rglob("*")) == before


def test_debug_shows_the_stack():
    with pytest.raises(UserError, match="unknown algorithm"):
        search.main(["--algo", "gfpll", "--debug"])


def test_a_grace_period_below_the_first_effect_is_warned_about(folder, capsys):
    arguments = f"--algo gfpl --grace 5 --storage-path {folder} --name taken"  # the last is refused after the warning
    assert search.main(arguments.split()) == 2
    assert "--grace 5 lets trials be stopped before round 20" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_starts")
def test_ctrl_c_ends_a_file_that_never_does(tmp_path, capsys):
    """It comes as soon as the file runs."""
    interrupts = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / "loops.py").write_text(f"{interrupts}while True: pass")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert search.main(["--algo", "gfpl", "--space", str(tmp_path / "loops.py")]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "interrupted\n"
