"""The papers' own figures, measured again."""
