"""What an import finds in the studies that it adds to."""

from factories import SHAPE, TILED_16, TILED_32

from tilewright.service.operations.exchange.rows import known
from tilewright.service.store import models


def test_contents_are_those_of_the_studies_that_are_asked_for(rows):
    own, other, withdrawn = (
        rows.best(SHAPE | {"m": m}, m, configuration=configuration)
        for m, configuration in ((8, TILED_16), (9, TILED_32), (10, TILED_16))
    )
    withdrawn.retracted_at = withdrawn.verified_at
    rows.session.flush()
    trials = [rows.trial_of(best) for best in (own, other, withdrawn)]
    first, second, third = (trial.study_id for trial in trials)
    study = rows.session.get_one(models.Study, first)
    slower = rows.trial(study, rows.session.get_one(models.TuningJob, trials[0].job_id), TILED_32, 9.0)
    contents = known(rows.session, [first, third])
    assert contents.hashes == {
        first: {trials[0].configuration_hash, slower.configuration_hash},
        third: {trials[2].configuration_hash},
    }
    assert {study: (best.id, best.time_ms) for study, best in contents.standing.items()} == {first: (own.id, 8)}
    assert contents.retracted == {(third, trials[2].configuration_hash)}
    assert set(known(rows.session, [second]).standing) == {second}
