"""import_document(): results of another installation or tool, checked row by row, in one transaction.

Imports have studies of their own: their environment names the origin. No study that is measured here gets
an imported trial, so no search, no finals and no best configuration of this installation can be misled by one.
A best is taken over only from `tilewright/1`, where its error was bounded; one that was measured here goes before it.
Kernels, device models, environments and problems are added with the first study of theirs that has a row to add.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.service.errors import ConflictError
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.exchange import rows as exchange_rows
from tilewright.service.operations.exchange import write as exchange_write
from tilewright.service.operations.exchange.checks import ImportContext, figures, least_of, refusal
from tilewright.service.operations.exchange.document import BestPart
from tilewright.service.operations.exchange.import_tables import import_tables
from tilewright.service.operations.exchange.incoming import ImportOptions, IncomingDocument, IncomingStudy
from tilewright.service.operations.exchange.read import read_document
from tilewright.service.operations.exchange.report import ImportAnswer, ImportReport, Reason
from tilewright.service.operations.exchange.rows import KernelRow, NewTrial, Source, Space, StudyContents, StudyKey
from tilewright.service.operations.exchange.write import Addition, NewBest, job_result
from tilewright.service.operations.registry import catalogue, device_model_of
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.loop.verify import C_DEFAULT

PIECE = 500
"""Studies that are written with one set of statements."""


class _RolledBackError(Exception):
    """Ends the transaction of a dry run, or of an import that takes nothing over."""


def import_document(body: bytes, target: ImportOptions, *, dry_run: bool = False) -> ImportAnswer:
    """Imports the document and reports what was added; a dry run reports the same and keeps nothing.

    Raises InvalidRequestError for a document that cannot be read, ConflictError while another import goes on.
    """
    incoming = read_document(body, target)
    report = ImportReport()
    with suppress(_RolledBackError), transaction() as session:
        import_studies(session, incoming, report)
        if dry_run or not (
            report.studies or report.tables
        ):  # today's sources that nothing was taken over for are not kept
            raise _RolledBackError
    return report.answer(incoming.format, incoming.origin, hashlib.sha256(body).hexdigest(), dry_run=dry_run)


def import_studies(session: Session, incoming: IncomingDocument, report: ImportReport) -> None:
    """Adds every row that passes the checks; the report lists the others."""
    if not exchange_rows.lock_imports(session):
        raise ConflictError("Another import is running; try again when it is over.")
    importer = _Importer(session, incoming, report)
    for start in range(0, len(incoming.studies), PIECE):
        importer.add(incoming.studies[start : start + PIECE])
    import_tables(session, incoming, report)


@dataclass(frozen=True)
class _Admitted:
    """A study's rows that may be added, by their places in the document."""

    incoming: IncomingStudy
    place: ImportContext
    key: StudyKey
    kernel: KernelRow
    trials: dict[int, NewTrial]
    best: BestPart | None

    @property
    def best_trial(self) -> NewTrial | None:
        """The trial of the best."""
        return None if self.best is None else self.trials[self.best.trial]


@dataclass
class _Importer:
    session: Session
    incoming: IncomingDocument
    report: ImportReport
    _sources: dict[str, Collection[Source]] = field(default_factory=dict)
    _kernels: dict[str, KernelRow] = field(default_factory=dict)
    _models: dict[str, DeviceModel | None] = field(default_factory=dict)
    _model_ids: dict[str, int] = field(default_factory=dict)
    _environments: dict[Environment, int] = field(default_factory=dict)
    _space_hashes: dict[tuple[str, ...], str] = field(default_factory=dict)
    _seen: set[StudyKey] = field(default_factory=set)

    def add(self, studies: Sequence[IncomingStudy]) -> None:
        """Adds the new rows of these studies, with few statements, or notes why not."""
        placed = [(study, place) for study in studies if (place := self._place(study)) is not None]
        admitted = self._admitted(placed)
        if not admitted:
            return
        spaces = {one.key: self._space(one) for one in admitted}
        rows = exchange_rows.study_rows(self.session, spaces)
        known = exchange_rows.known(self.session, [study_id for study_id, _ in rows.values()])
        additions = [found for one in admitted if (found := self._addition(one, *rows[one.key], known)) is not None]
        exchange_write.write(self.session, additions)
        self.report.studies += len(additions)
        self.report.trials += sum(len(addition.trials) for addition in additions)
        self.report.best += sum(addition.best is not None for addition in additions)

    def _place(self, incoming: IncomingStudy) -> ImportContext | None:
        part = incoming.problem
        try:
            kernel = catalogue().get(part.kernel)
            problem = kernel.problem(part.shape, part.dtype, part.options)
        except UnknownNameError:
            self.report.skip(incoming.pointer, Reason.UNKNOWN_KERNEL, f"there is no kernel {part.kernel!r} here")
            return None
        except InvalidProblemError as error:
            self.report.skip(incoming.pointer, Reason.INVALID_PROBLEM, str(error))
            return None
        model = self._model(incoming.device_model)
        if model is None:
            detail = (
                f"{incoming.device_model} is neither known here nor described in the document; for T4 and Kernel Tuner "
                "files, give its limits or name a known product such as nvidia-a100"
            )
            self.report.skip(incoming.pointer, Reason.UNKNOWN_DEVICE_MODEL, detail)
            return None
        if kernel.name not in self._sources:
            self._sources[kernel.name] = exchange_rows.kernel_sources(self.session, kernel)
        asked = BestQuery(kernel, problem, incoming.device_model, model.limits)
        times_ms = [part.time_ms for part in incoming.trials.values() if part.time_ms is not None]
        return ImportContext(asked, model, self._sources[kernel.name], least_of(times_ms))

    def _model(self, slug: str) -> DeviceModel | None:
        """The device model as this installation knows it, else as the document describes it."""
        if slug not in self._models:
            row, described = exchange_rows.device_model_row(self.session, slug), self.incoming.device_models.get(slug)
            self._models[slug] = described if row is None else device_model_of(row)
        return self._models[slug]

    def _admitted(self, placed: Sequence[tuple[IncomingStudy, ImportContext]]) -> list[_Admitted]:
        """The studies that have a row to add."""
        with_rows = []
        for incoming, place in placed:
            trials = dict(self._trials(incoming, place))
            if trials:
                with_rows.append((incoming, place, trials, self._best(incoming, trials, place)))
        if not with_rows:
            return []
        asked = [place.asked for _, place, _, _ in with_rows]
        problems = {query.problem.hash: (self._kernel(query.kernel).id, query.problem) for query in asked}
        ids = exchange_rows.problem_ids(self.session, problems)
        admitted = []
        for incoming, place, trials, best in with_rows:
            environment = self._environment_id(incoming.environment)
            key = (ids[place.asked.problem.hash], self._model_id(place), environment)
            if key in self._seen:
                self.report.skip(incoming.pointer, Reason.TWICE, "this study is in the document twice")
                continue
            self._seen.add(key)
            admitted.append(_Admitted(incoming, place, key, self._kernel(place.asked.kernel), trials, best))
        return admitted

    def _trials(self, incoming: IncomingStudy, place: ImportContext) -> Iterator[tuple[int, NewTrial]]:
        """The rows that may be added, by their place in the document."""
        for unread in incoming.unread:
            self.report.skip(unread.pointer, Reason.NOT_A_CONFIGURATION, unread.detail)
        seen: set[str] = set()
        for row, written in incoming.trials.items():
            part = place.with_current_source(written)
            refused = refusal(part, place, is_verified=incoming.is_verified)
            if refused is not None:
                self._skip(incoming, row, *refused)
                continue
            trial = NewTrial(Configuration.of(part.variant, part.configuration), part)
            if trial.hash in seen:
                self._skip(incoming, row, Reason.TWICE, "this configuration is in the study twice")
                continue
            seen.add(trial.hash)
            yield row, trial

    def _best(self, incoming: IncomingStudy, trials: dict[int, NewTrial], place: ImportContext) -> BestPart | None:
        best = incoming.best
        if best is None or best.trial not in trials:  # then the trial's own row says why
            return None
        if not place.is_proven(best.bound_ratio):
            self._skip_best(incoming, Reason.NOT_VERIFIED, f"its bound ratio is not at most {C_DEFAULT:g}")
            return None
        if (detail := place.impossible(best.time_ms)) is not None:
            self._skip_best(incoming, Reason.IMPOSSIBLE_TIME, detail)
            return None
        return best

    def _kernel(self, kernel: Kernel) -> KernelRow:
        if kernel.name not in self._kernels:
            self._kernels[kernel.name] = exchange_rows.kernel_row(self.session, kernel)
        return self._kernels[kernel.name]

    def _model_id(self, place: ImportContext) -> int:
        slug = place.asked.slug
        if slug not in self._model_ids:
            self._model_ids[slug] = exchange_rows.device_model_id(self.session, slug, place.described)
        return self._model_ids[slug]

    def _environment_id(self, environment: Environment) -> int:
        if environment not in self._environments:
            row_id = exchange_rows.environment_id(self.session, environment, self.incoming.origin)
            self._environments[environment] = row_id
        return self._environments[environment]

    def _space(self, admitted: _Admitted) -> Space:
        """The study's space as the document states it; its size is counted only where the document has none."""
        asked = admitted.place.asked
        usable = (asked.kernel.name, *admitted.place.usable)
        space = asked.kernel.space(asked.problem, asked.limits)
        if usable not in self._space_hashes:  # it depends on the variants alone
            self._space_hashes[usable] = space.hash()
        size = len(space) if admitted.incoming.space_size is None else admitted.incoming.space_size
        return Space(self._space_hashes[usable], size)

    def _addition(self, admitted: _Admitted, study_id: int, first: int, known: StudyContents) -> Addition | None:
        """The new rows of the study, or None."""
        there = known.hashes.get(study_id, ())
        for row, trial in admitted.trials.items():
            if trial.hash in there:
                self._skip(admitted.incoming, row, Reason.ALREADY_HERE, "the study here already has this configuration")
        new = [trial for trial in admitted.trials.values() if trial.hash not in there]
        best = self._new_best(admitted, study_id, known)
        if not new and best is None:
            return None
        origin = {"origin": self.incoming.origin, "format": self.incoming.format}
        result = {"imported": origin} | job_result(best)
        return Addition(
            admitted.key, study_id, first, new, best, admitted.kernel.variant_ids, admitted.place.work, result
        )

    def _new_best(self, admitted: _Admitted, study_id: int, known: StudyContents) -> NewBest | None:
        """The best, if it may replace the one in its study; if not, that is noted."""
        best, trial, standing = admitted.best, admitted.best_trial, known.standing.get(study_id)
        if best is None or trial is None:
            return None
        if standing is not None and standing.time_ms <= best.time_ms:
            is_same = (standing.verified_at, standing.time_ms) == (best.verified_at, best.time_ms)
            reason = Reason.ALREADY_HERE if is_same else Reason.NO_BETTER
            self._skip_best(
                admitted.incoming, reason, f"the best here takes {standing.time_ms:g} ms, this one {best.time_ms:g} ms"
            )
            return None
        if (study_id, trial.hash) in known.retracted:
            self._skip_best(admitted.incoming, Reason.NO_BETTER, "this configuration was retracted here")
            return None
        return NewBest(best, trial, figures(admitted.place, best.time_ms), standing)

    def _skip(self, incoming: IncomingStudy, row: int, reason: Reason, detail: str) -> None:
        self.report.skip(incoming.row_pointer(row), reason, detail)

    def _skip_best(self, incoming: IncomingStudy, reason: Reason, detail: str) -> None:
        self.report.skip(f"{incoming.pointer}/best", reason, detail)
