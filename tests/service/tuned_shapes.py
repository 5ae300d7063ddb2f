"""Shapes that were tuned with trials enough to predict from."""

from factories import SHAPE

from tilewright.kernels.space import Configuration
from tilewright.service.store import models


def tune_four(rows):
    """Enough tuned shapes to predict from; the bests, whose configuration is the fastest of each."""
    tried = [Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}) for x in (16, 32, 64) for y in (2, 4, 8)]
    bests = [rows.best(SHAPE | {"m": m}, time_ms=m / 100) for m in (256, 512, 1024, 2048)]
    for best in bests:
        trial = rows.trial_of(best)
        study = rows.session.get_one(models.Study, trial.study_id)
        job = rows.session.get_one(models.TuningJob, trial.job_id)
        for place, configuration in enumerate(tried):
            rows.trial(study, job, configuration, 2 * best.time_ms + place / 50)
    return bests
