"""Every figure that a result, a trial or a device model may lack can be missing: pages show the others."""

import re

import pytest
from factories import H200, SHAPE, TILED_32

from tilewright.service.store import models

OF_BEST = ("gflops", "gb_per_s", "roof_ratio", "default_ms", "slowest_ms", "library_ms", "bound_ratio")
OF_TRIAL = ("occupancy", "registers", "shared_bytes", "gflops", "gb_per_s", "compile_ms", "clock_mhz", "bound_ratio")
OF_MODEL = ("datasheet_gflops", "datasheet_gb_per_s")
LISTS = (
    "/?kernel=gemm",
    "/?kernel=gemm&colour=roof",
    "/results",
    "/kernels/gemm",
    "/device-models/nvidia-h200",
    "/jobs",
)


@pytest.fixture
def lacking(commit):
    """The addresses of the pages of one study for each figure that is missing, and of one without any."""

    def make(rows):
        for number, missing in enumerate([{one} for one in (*OF_BEST, *OF_TRIAL)] + [{*OF_BEST, *OF_TRIAL}]):
            shape = SHAPE | {"m": 100 + number}
            best = rows.best(shape, library_ms=1.5)
            trial = rows.trial_of(best)
            best.roof_ratio = best.bound_ratio = trial.occupancy = trial.bound_ratio = 0.5
            best.gflops, trial.gflops, best.gb_per_s, trial.gb_per_s = 100.0, 100.0, 3_600.0, 3_600.0
            trial.registers = trial.shared_bytes = trial.compile_ms = trial.clock_mhz = 64
            for name in missing & {*OF_BEST}:
                setattr(best, name, None)
            for name in missing & {*OF_TRIAL}:
                setattr(trial, name, None)
            if "library_ms" in missing:
                best.library_name = best.library_faster = None
            study = rows.session.get_one(models.Study, trial.study_id)
            rows.trial(study, rows.session.get_one(models.TuningJob, best.job_id), TILED_32, 2.0)
            yield f"/studies/{study.id}"
            yield f"/studies/{study.id}/trials/{trial.number}"
            yield f"/kernels/gemm/problem?shape=m={shape['m']},n={shape['n']},k={shape['k']}"

    return commit(lambda rows: list(make(rows)))


@pytest.mark.parametrize("known", [OF_MODEL, OF_MODEL[:1], OF_MODEL[1:], ()])
def test_pages_show_what_is_known(page, lacking, commit, known):
    figures = {"datasheet_gflops": H200.datasheet_gflops, "datasheet_gb_per_s": H200.datasheet_gb_per_s}

    def change(rows):
        (model,) = rows.session.query(models.DeviceModel).filter_by(slug="nvidia-h200")
        model.details = {**model.details, "datasheet_gflops": {}, "datasheet_gb_per_s": None}
        model.details |= {name: figures[name] for name in known}

    commit(change)
    for path in (*(lacking if known == OF_MODEL else lacking[:6]), *LISTS):
        text = re.sub(r"<[^>]+>|<script.*?</script>", " ", page(path), flags=re.DOTALL)
        assert not re.search(r"\b(None|nan|inf|NaN)\b", text), path
