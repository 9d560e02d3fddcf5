"""Papers' own figures measured anew."""
