"""Deaths of disks and processes, and the rule that commands answer by."""
