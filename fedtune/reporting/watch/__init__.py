"""The live page of `fedtune watch`: what runs do, read from their folders; nothing is written there."""
