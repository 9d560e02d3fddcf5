"""Bringing a user's features to mean 0 and spread 1, by what the clients train on."""

from __future__ import annotations

import numpy as np

from fedtune.data.federation import Federation


def standardised(f: Federation) -> Federation:
    """The federation with features of mean 0 and standard deviation 1 over all clients' training rows.

    Per feature of a vector; per channel of images [channels, height, width] and series [channels, time].  Validation
    and test rows are brought to the same scale and do not set it.  A feature that never varies becomes 0 there; tokens
    stay as they are.  That clients agree on a scale is taken for granted: it would cost them one exchange.
    """
    if f.x.dtype.kind != "f":
        return f
    table = f.train
    real = np.arange(table.rows.shape[1]) < table.counts[:, None]
    train = f.x[np.unique(table.rows[real])]
    over = (0, *range(2, train.ndim))
    mean = train.mean(axis=over, dtype=np.float64, keepdims=True)
    spread = train.std(axis=over, dtype=np.float64, keepdims=True)
    spread[spread <= 1e-12 * np.maximum(1, np.abs(mean))] = 1
    return f._replace(x=((f.x - mean) / spread).astype(np.float32))
