"""The programs a person starts: ``nopg-deploy`` and ``nopg-collect``."""
