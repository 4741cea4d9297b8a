"""`python -m sdgmnet`, the same as the command `sdgmnet`."""

import sys

from sdgmnet.cli import main


def run() -> None:
    sys.exit(main())


if __name__ == "__main__":
    run()
