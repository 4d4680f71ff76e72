"""The programs a person starts: ``nopg-deploy``, ``nopg-collect``, and ``check_board`` for a board that is being wired."""
