"""``python -m torchtriage``."""

import sys

from torchtriage.cli import main

sys.exit(main())
