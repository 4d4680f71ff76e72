"""Recorded transitions: the data set, its files, what they hold."""
