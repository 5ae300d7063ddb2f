"""find_best on a first day: from the records that come with the package, marked as such."""

import pytest
import shipped_file
from factories import CPU, H100, T4
from found import find_best
from shipped_file import WORDS
from test_predicted_answers import ASKED, shape_of, tune  # noqa: F401 - a fixture

from tilewright.service.errors import NotFoundError
from tilewright.service.settings import settings
from tilewright.tuner.predict import shipped

FAR = {"m": 64, "n": 12345, "k": 64}


pytestmark = pytest.mark.usefixtures("shipped_records")


def ask(rows, shape=None, model="nvidia-h200", **more):
    return find_best(rows.session, "gemm", model, shape or ASKED, **more)


def test_a_fresh_installation_predicts_at_once_and_says_from_what(rows):
    rows.device()
    found = ask(rows)
    assert (found.match, found.variant) == ("predicted", "tiled")
    assert found.configuration["TILE_WIDTH"] in {24, 32}
    assert (found.shipped, found.origins, found.device_model) == (WORDS, [], "nvidia-h200")
    assert found.time_ms == pytest.approx(shipped_file.time_ms(700, 600, 500, 32), rel=0.3)
    assert (found.verified_at, found.environment, found.study_id, found.gain_over_default) == (None, None, None, None)
    assert found.improvable
    assert ask(rows, FAR).shipped == WORDS


def test_a_device_model_without_a_worker_is_answered_for_as_with_one(rows):
    rows.device(CPU)
    without = [ask(rows), ask(rows, options={"accuracy": "tf32"})]
    assert [(found.match, found.shipped) for found in without] == [("predicted", WORDS), ("default", None)]
    with pytest.raises(NotFoundError):
        ask(rows, model=T4.slug)
    rows.device()
    assert [ask(rows), ask(rows, options={"accuracy": "tf32"})] == without


def test_a_layer_is_answered_from_records_of_the_product_in_it(rows):
    rows.device()
    found = find_best(rows.session, "linear", "nvidia-h200", ASKED, options={"activation": "gelu"})
    assert (found.match, found.variant) == ("predicted", "tiled")
    assert (found.library.name, found.library.expected) == ("cuBLAS 13.1", True)
    assert "of gemm with" in found.shipped


def test_the_librarys_expected_time_decides_which_to_use(rows, tmp_path):
    rows.device()
    ahead = ask(rows).library
    assert (ahead.name, ahead.expected, ahead.faster) == ("cuBLAS 13.1", True, False)
    assert ahead.speedup == pytest.approx(10, rel=0.4)
    folder = tmp_path / "slower"
    folder.mkdir()
    slower = [shipped_file.shape(*sizes, library=1.0) for sizes in shipped_file.SHAPES]
    shipped_file.write(folder, shipped_file.document(shapes=slower, measured_on="2026-11-24"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "FOLDER", folder)
        assert ask(rows, ASKED | {"m": 701}).library.faster


def test_own_shapes_take_the_place_of_shipped_ones(rows, tune):  # noqa: F811
    for count, sizes in enumerate([*shipped_file.SHAPES[:5], (300, 200, 100), (90, 3000, 70)], start=1):
        tune(shape_of(*sizes))
        found = ask(rows)
        assert (found.match, found.shipped) == ("predicted", WORDS if count < len(shipped_file.SHAPES) else None)
    own = ask(rows, shape_of(*shipped_file.SHAPES[0]))
    assert (own.match, own.shipped) == ("exact", None)


@pytest.mark.parametrize(("model", "helps"), [(H100, True), (T4, False)])  # of another compute capability
def test_few_own_shapes_are_joined_by_records_of_the_likest_gpu(rows, tune, model, helps):  # noqa: F811
    found = []
    for sizes in [*shipped_file.SHAPES[:5], (300, 200, 100), (90, 3000, 70)]:
        tune(shape_of(*sizes), model=model)
        found.append(ask(rows, model=model.slug))
    assert [answer.match for answer in found] == ["nearest"] * 3 + ["predicted"] * 4
    joined = [WORDS] * 2 if helps else [None] * 2
    assert [answer.shipped for answer in found] == [None] * 3 + joined + [None] * 2
    assert {answer.library for answer in found} == {None}  # what the other's library takes says nothing


def test_what_the_library_takes_on_a_likely_gpu_is_not_told(rows, tune, tmp_path):  # noqa: F811
    shapes = [shipped_file.shape(m * times, n, k) for m, n, k in shipped_file.SHAPES for times in (1, 2)]
    folder = tmp_path / "more"
    folder.mkdir()
    shipped_file.write(folder, shipped_file.document(shapes=shapes))
    for sizes in shipped_file.SHAPES[:4]:
        tune(shape_of(*sizes), model=H100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "FOLDER", folder)
        found = ask(rows, model=H100.slug)
    assert (found.match, found.shipped, found.library) == ("predicted", WORDS, None)


def test_another_gpu_gets_a_transferred_answer_without_times(rows):
    rows.device()
    for model in (H100, T4):
        rows.device(model)
        found = ask(rows, model=model.slug)
        assert (found.match, found.shipped, found.device_model) == ("transferred", WORDS, "nvidia-h200")
        assert (found.time_ms, found.library, found.expected_loss, found.verified_at) == (None, None, None, None)
        assert found.variant == "tiled"


def test_what_is_tuned_on_another_gpu_here_goes_before_shipped_records(rows):
    rows.best(ASKED)
    rows.device(H100)
    found = ask(rows, model=H100.slug)
    assert (found.match, found.shipped) == ("transferred", None)


def test_a_cpu_device_and_other_manners_get_the_default(rows):
    rows.device(CPU)
    rows.device()
    asked = [ask(rows, model=CPU.slug), ask(rows, options={"accuracy": "tf32"})]
    assert [(found.match, found.shipped) for found in asked] == [("default", None)] * 2


def test_a_batch_is_answered_from_single_products(rows):
    rows.device()
    rows.device(H100)
    for model, match in (("nvidia-h200", "predicted"), (H100.slug, "transferred")):
        found = ask(rows, ASKED | {"batch": 3}, model=model)
        assert (found.match, found.shipped, found.variant) == (match, WORDS, "tiled")


def test_a_driver_that_is_asked_for_counts(rows):
    rows.device()
    assert ask(rows, driver="580.159", toolkit="13.0").shipped == WORDS
    assert ask(rows, driver="570.10").match == "default"


def test_a_setting_turns_them_off(rows):
    rows.device()
    with pytest.MonkeyPatch.context() as patch:  # undone before the fixture's own change
        patch.setenv("TILEWRIGHT_SHIPPED_RECORDS", "false")
        settings.cache_clear()
        assert ask(rows).match == "default"
