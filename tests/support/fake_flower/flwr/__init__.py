"""The small part of Flower that fedtune touches, without Ray: nodes register late, replies come in any order."""
