"""`python -m tilewright.service.cli`: the same as the `tilewright` script."""

import sys

from tilewright.service.cli.application import main

sys.exit(main())
