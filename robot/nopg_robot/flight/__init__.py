"""What a run leaves behind: the recorder, its journal on disk, flight logs read again, and their picture."""
