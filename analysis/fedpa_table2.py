"""Replaced by

    fedtune reproduce fedpa-table2 --parts FashionMNIST,FashionMNIST9 --rounds 50 --preset as_text,as_published
"""

raise SystemExit(__doc__)
