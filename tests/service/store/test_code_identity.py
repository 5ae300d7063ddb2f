"""What was stored by hashes of texts is as fresh by hashes of code."""

from importlib import import_module

from factories import SHAPE
from found import find_best
from sqlalchemy import select

from tilewright.kernels.identity import code_hash, text_hash
from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.jobs.record_trial import configuration_hash, hash_with_source
from tilewright.service.operations.staleness.standing import source_key, source_keys
from tilewright.service.store import models

take_hashes_anew = import_module("tilewright.migrations.versions.0017_code_identity").take_hashes_anew


def test_a_best_of_the_version_before_stays_fresh(rows):
    best = rows.best()
    trial = rows.trial_of(best)
    kernel = registry.catalogue().get("gemm")
    source = rows.session.get_one(models.KernelVariant, trial.kernel_variant_id)
    study = rows.session.get_one(models.Study, trial.study_id)
    rows.session.execute(
        models.KernelVariant.__table__.delete().where(
            models.KernelVariant.id != source.id, models.KernelVariant.name == source.name
        )
    )
    then = text_hash(kernel.source(source.name))
    source.source_hash = then
    declared = Configuration.from_json(trial.configuration)
    trial.configuration_hash = hash_with_source(then, declared)
    study.space_by_source = {source_key(source.name, then): 7, "other:" + "0" * 64: 3}
    rows.session.flush()
    assert find_best(rows.session, "gemm", "nvidia-h200", SHAPE).stale

    take_hashes_anew(rows.session.connection())
    rows.session.expire_all()

    assert source.source_hash == kernel.source_hash(source.name) == code_hash(source.source)
    assert trial.configuration_hash == configuration_hash(kernel, declared)
    assert study.space_by_source == {source_keys(kernel)[source.name]: 7, "other:" + "0" * 64: 3}
    assert not find_best(rows.session, "gemm", "nvidia-h200", SHAPE).stale


def test_of_two_states_that_differ_in_comments_the_newest_counts(rows):
    rows.device()
    kernel_id = rows.session.scalars(select(models.Kernel.id).where(models.Kernel.name == "gemm")).one()
    texts = ["int a;", "int a; // b", "int c;"]
    added = [
        models.KernelVariant(kernel_id=kernel_id, name="made", source_hash=text_hash(text), source=text)
        for text in texts
    ]
    rows.session.add_all(added)
    rows.session.flush()
    take_hashes_anew(rows.session.connection())
    rows.session.expire_all()
    assert [one.source_hash for one in added] == [text_hash("int a;"), code_hash("int a;"), code_hash("int c;")]
