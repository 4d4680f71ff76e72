"""``python -m sb3_nopg.zoo``; see `sb3_nopg.zoo.command_line`."""

import sys

from sb3_nopg.zoo.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
