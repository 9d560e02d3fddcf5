"""Replaced by `fedtune reproduce fedsa-device --rounds 30`."""

raise SystemExit(__doc__)
