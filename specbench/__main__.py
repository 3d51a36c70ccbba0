"""``python -m specbench``: the same as the command ``specbench``."""

import sys

from specbench.cli.app import main

sys.exit(main())
