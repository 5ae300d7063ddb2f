"""The sources of a family's table: the bundle, this machine, or the service, which is asked once a day."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.any_size.tables import TableFolder, ranges_of
from tilewright.tuner.runtime.bundles.bundle import Bundle
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.known.answers import FRESH_S
from tilewright.tuner.runtime.known.service import Service

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableSources:
    """The table sources of a runtime. With a bundle the service is not asked; `served` keeps the service's tables."""

    bundle: Bundle | None
    own: TableFolder
    served: TableFolder
    service: Service | None

    def ranges(self, kernel: Kernel, family: Family, place: TargetDevice) -> Ranges | None:
        """The ranges of the first source that has the family's table; None where none has it."""
        found = self.bundle.ranges(kernel, family, place) if self.bundle else None
        found = found or self.own.ranges(kernel, family, place)
        found = found or self.served.ranges(kernel, family, place, within_s=FRESH_S)
        if found is None and self.service and self.bundle is None:
            answer = self.service.table(family, place, partial(self._keep, family, place))
            found = ranges_of(answer, kernel, family, place) if answer else None
            found = found or self.served.ranges(kernel, family, place)
        return found

    def _keep(self, family: Family, place: TargetDevice, answer: Mapping[str, Any]) -> None:
        try:
            self.served.put(family, place.slug, answer)
        except OSError as error:
            log.warning("a table could not be kept in %s: %s", self.served.folder, error)
