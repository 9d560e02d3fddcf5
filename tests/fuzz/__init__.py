"""Deaths of disks and processes, searches of ten thousand trials, and the rule that commands answer by."""
