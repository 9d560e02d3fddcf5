"""Users' own files: how they are named, imported and copied, and how their errors are told."""
