"""What every room needs: errors, checks, the processor's and the machine's limits."""
