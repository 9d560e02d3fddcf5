"""Replaced by

fedtune reproduce fedpa-table2 --parts FashionMNIST,FashionMNIST9 --preset as_text,as_published,ours
"""

raise SystemExit(__doc__)
