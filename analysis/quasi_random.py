"""Whether quasi-random first trials help: TPE beside TPE whose first ten trials are a scrambled Sobol sequence.

    for t in fedavg-digits-shards fedproto-digits-shards gfpl-digits-shards \
             fedavg-gfpl-fmnist-few fedproto-gfpl-fmnist-few gfpl-gfpl-fmnist-few; do
        python -m fedtune.analysis.quasi_random analysis/results/tables/$t.parquet --searcher tpe,qmc --budget 16 -o $t.csv
    done
"""

import sys
import warnings

from optuna.samplers import QMCSampler, TPESampler
from optuna.trial import TrialState

from fedtune.analysis import simulate
from fedtune.tuning import searchers


class QuasiRandomStart(TPESampler):
    """TPE that draws by Optuna's QMC wherever it would draw at random."""

    def __init__(self, seed):
        super().__init__(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._first = QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False)

    def _starting(self, study):
        return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))) < 10

    def infer_relative_search_space(self, study, trial):
        return self._first.infer_relative_search_space(study, trial) if self._starting(study) else {}

    def sample_relative(self, study, trial, space):
        return self._first.sample_relative(study, trial, space) if space and self._starting(study) else {}


searchers.KINDS["qmc"] = searchers.SearcherKind(sampler=QuasiRandomStart, startup=10)

if __name__ == "__main__":
    sys.exit(simulate.main())
