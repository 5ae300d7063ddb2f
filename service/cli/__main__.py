"""`python -m tilewright.service.cli`: the same as the `tilewright` script."""

import sys

from tilewright.service.cli import main

sys.exit(main())
