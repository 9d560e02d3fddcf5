"""Servers of today."""
