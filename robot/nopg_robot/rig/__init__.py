"""What every room needs: rig files, the protocol of a serial board, time, and what can go wrong."""
