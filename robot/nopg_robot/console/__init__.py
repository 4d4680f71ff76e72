"""The operator's console: a page on this computer that shows a flight and has one more stop button."""
