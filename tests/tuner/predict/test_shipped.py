"""Records that come with the package: what of them still holds, and how they say so."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import shipped_file
from faulty_kernels import FAULTY, say_that_tiled_was_faulty
from shipped_file import GEMM, SHAPES, WIDTHS, WORDS, document
from waiting import PATIENCE_S

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.predict import shipped
from tilewright.tuner.predict.predictor import Predictor

LIKE = GEMM.problem({"m": 300, "n": 300, "k": 300})


def series_of(tmp_path, monkeypatch, content, like=LIKE):
    shipped_file.write(tmp_path, content)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    return shipped.shipped_series(GEMM, like)


def test_records_are_read_as_they_were_written(tmp_path, monkeypatch):
    (series,) = series_of(tmp_path, monkeypatch, document())
    assert [tuple(size for _, size in record.problem.axes) for record in series.records] == SHAPES
    assert series.records[0].ranked[0].values["TILE_WIDTH"] == WIDTHS[-1]
    assert series.records[0].library.name == "cuBLAS 13.1"
    assert {record.shipped for record in series.records} == {WORDS}
    assert (series.limits.compute_capability, series.limits.features) == ((9, 0), frozenset({"ptx"}))


def test_threads_that_need_the_same_records_read_them_once(tmp_path, monkeypatch):
    shipped_file.write(tmp_path, document())
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    together, read, nearest = threading.Barrier(4), [], shipped._nearest_kin

    def nearest_kin(*asked):
        read.append(asked)
        time.sleep(0.05)  # a real file takes longer
        return nearest(*asked)

    def ask(_):
        together.wait(PATIENCE_S)
        return shipped.shipped_series(GEMM, LIKE)

    monkeypatch.setattr(shipped, "_nearest_kin", nearest_kin)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, range(4)))
    assert all(one is found[0] for one in found)
    assert len(read) == 1


def test_other_options_and_dtypes_have_none(tmp_path, monkeypatch):
    shape = {"m": 300, "n": 300, "k": 300}
    for like in (
        GEMM.problem(shape, "float64"),
        GEMM.problem(shape, options={"accuracy": "tf32"}),
        GEMM.problem(shape, options={"trans_a": True, "packed_b": True}),
    ):
        assert series_of(tmp_path, monkeypatch, document(), like) == ()


def test_what_is_akin_has_the_same_trials_and_times_of_the_library(tmp_path, monkeypatch):
    shape = {"m": 300, "n": 300, "k": 300}
    linear = catalogue().get("linear")
    likes = [GEMM.problem(shape, options={"trans_a": True, "accuracy": "fp32-fma"}), linear.problem(shape)]
    (own,) = series_of(tmp_path, monkeypatch, document())
    for like in likes:
        kernel = catalogue().get(like.kernel)
        (series,) = shipped.shipped_series(kernel, like)
        assert [dict(r.problem.axes) for r in series.records] == [dict(r.problem.axes) for r in own.records]
        assert {(r.problem.kernel, r.problem.option_items) for r in series.records} == {
            (like.kernel, like.option_items)
        }
        tiled = {c: ms for c, ms in own.records[0].times_ms.items() if c.variant == "tiled"}
        assert {c: ms for c, ms in series.records[0].times_ms.items() if c.variant == "tiled"} == tiled
        assert ", of gemm with trans_a=false, trans_b=false, beta_zero=true, accuracy=fp32" in series.records[0].shipped
        assert series.records[0].library == own.records[0].library
    assert "without 54 of 84 trials that are not in the space" in series.records[0].shipped  # linear has no `naive`


def test_a_batch_has_those_of_single_products(tmp_path, monkeypatch):
    (own,) = series_of(tmp_path, monkeypatch, document())
    batch = GEMM.problem({"m": 300, "n": 300, "k": 300, "batch": 8})
    (series,) = series_of(tmp_path, monkeypatch, document(), batch)
    assert series.records == own.records
    made = Predictor(GEMM, series.limits, series.records).predict(batch, GEMM.space(batch, series.limits).__contains__)
    assert made is not None
    assert made.configuration.variant == "tiled"


def test_a_convolution_has_those_of_the_product_inside(tmp_path, monkeypatch):
    conv2d = catalogue().get("conv2d")
    layer = {"batch": 4, "height": 28, "width": 28, "channels": 64, "filters": 128, "kernel_h": 3, "kernel_w": 3}
    asked = [conv2d.problem(layer | {"padding": 1}, options={"activation": "relu"}), conv2d.problem(layer)]
    content = document()
    written = content["series"][0]
    product = GEMM.problem(dict(zip("mnk", SHAPES[0], strict=True)), options={"trans_b": True})
    starts = GEMM.space(product, shipped.limits_from(shipped_file.LIMITS)).defaults()
    for start in (start for start in starts if start.variant in {"wpt", "tensor3xtf32_sm90"}):
        name, values = start.variant, dict(start.items)
        written["variants"][name] = {"source_hash": GEMM.source_hash(name), "parameters": [*values]}
        written["shapes"][0]["trials"][name] = [[*values.values(), 1.0, 100]]
    shipped_file.write(tmp_path, content)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    for problem in asked:
        (series,) = shipped.shipped_series(conv2d, problem)
        record = series.records[0]
        m, n, k = SHAPES[0]
        pixels = {"batch": m, "height": 1, "width": 1, "channels": k, "filters": n, "kernel_h": 1, "kernel_w": 1}
        assert (record.problem.stated_shape, record.library) == (pixels, None)
        assert {c.variant for c in record.times_ms} == {"implicit_gemm", "pointwise3xtf32_sm90"}
        assert ", of gemm with trans_a=false" in record.shipped
    layers = written | {"kernel": "conv2d", "options": dict(asked[1].option_items), "measured_on": "2026-11-26"}
    layers |= {"axes": [*layer, "padding"], "variants": {"direct": {"source_hash": "", "parameters": ["THREADS"]}}}
    layers["shapes"] = [
        {"sizes": [*layer.values(), 1], "library": None, "trials": {"direct": [[64, 1.0, 30]]}, "failed": {}}
    ]
    content["series"].append(layers)
    (tmp_path / "both").mkdir()
    shipped_file.write(tmp_path / "both", content)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "both")
    (series,) = shipped.shipped_series(conv2d, asked[1])
    assert [r.problem.shape["padding"] for r in series.records] == [1, 0]  # its own, and the gemm's that it holds
    depthwise = conv2d.problem(layer, options={"depthwise": True})
    assert shipped.shipped_series(conv2d, depthwise) == ()


def test_what_batches_took_is_no_record_of_a_single_product(tmp_path, monkeypatch):
    content = document()
    batches = content["series"][0] | {"axes": ["m", "n", "k", "batch"], "measured_on": "2026-11-26"}
    batches["shapes"] = [row | {"sizes": [*row["sizes"], 8]} for row in batches["shapes"]]
    content["series"].append(batches)
    (single,) = series_of(tmp_path, monkeypatch, content)
    (both,) = series_of(tmp_path, monkeypatch, content, GEMM.problem({"m": 300, "n": 300, "k": 300, "batch": 2}))
    assert (len(single.records), len(both.records)) == (len(SHAPES), 2 * len(SHAPES))
    assert [record.problem.shape["batch"] for record in both.records] == [1] * len(SHAPES) + [8] * len(SHAPES)
    conv2d = catalogue().get("conv2d")  # whose images are a batch as well
    layer = {"batch": 4, "height": 28, "width": 28, "channels": 64, "filters": 128, "kernel_h": 3, "kernel_w": 3}
    assert not shipped._serves(batches, GEMM, conv2d.problem(layer))


def test_the_likest_device_models_of_a_compute_capability_come_first(tmp_path, monkeypatch):
    (h200,) = series_of(tmp_path, monkeypatch, document())
    small, large, older = (
        replace(h200, device_model=name, limits=replace(h200.limits, **changes))
        for name, changes in {
            "small": {"multiprocessors": 114},
            "large": {"multiprocessors": 144},
            "older": {"compute_capability": (8, 0)},
        }.items()
    )
    every = [older, small, large, h200]
    assert shipped.likest_first(every, "small", small.limits) == [small, h200, large]
    assert shipped.likest_first(every, "other", h200.limits) == [h200, large, small]
    records = shipped.joined([small, h200], "small")
    assert [record.problem for record in records] == [record.problem for record in [*small.records, *h200.records]]
    assert [record.library is None for record in records] == [False] * len(SHAPES) + [True] * len(SHAPES)
    assert {record.library for record in shipped.joined([small, h200], "other")} == {None}


def test_layers_are_akin_to_products_and_the_other_way_round():
    shape, linear = {"m": 300, "n": 300, "k": 300}, catalogue().get("linear")
    kin = {
        str(options): [kin.kernel for kin in kernel.akin(kernel.problem(shape, "bfloat16" if half else "", options))]
        for kernel, half, options in (
            (GEMM, True, {"trans_b": True}),
            (GEMM, False, {"trans_a": True}),
            (linear, True, {"activation": "gelu"}),
            (linear, False, {"accuracy": "tf32"}),
            (linear, False, {"packed_b": True}),
        )
    }
    assert [*kin.values()] == [["linear", "gemm"], ["gemm", "linear"], ["linear", "linear", "gemm"], [], []]


def test_own_series_go_before_those_of_what_is_akin(tmp_path, monkeypatch):
    content = document()
    transposed = GEMM.problem({"m": 300, "n": 300, "k": 300}, options={"trans_b": True})
    own = content["series"][0] | {"options": dict(transposed.option_items), "measured_on": "2026-11-25"}
    content["series"].append(own)
    (series,) = series_of(tmp_path, monkeypatch, content, transposed)
    assert "2026-11-25)" in series.records[0].shipped
    assert series.records[0].library is not None


def test_another_source_is_told(tmp_path, monkeypatch):
    content = document()
    content["series"][0]["variants"]["tiled"]["source_hash"] = "0" * 64
    (series,) = series_of(tmp_path, monkeypatch, content)
    assert "with other sources of tiled)" in series.records[0].shipped
    assert len(series.records[0].times_ms) == len(WIDTHS) + len(shipped_file.BLOCKS)


def test_records_of_a_source_that_was_faulty_are_used_and_say_so(tmp_path, monkeypatch):
    content = document()
    content["series"][0]["variants"]["tiled"]["source_hash"] = FAULTY
    say_that_tiled_was_faulty(tmp_path.parent, monkeypatch)
    (series,) = series_of(tmp_path, monkeypatch, content)
    assert "with faulty sources, since corrected, of tiled)" in series.records[0].shipped
    assert len(series.records[0].times_ms) == len(WIDTHS) + len(shipped_file.BLOCKS)


def test_what_the_space_has_no_longer_is_left_out_and_counted(tmp_path, monkeypatch):
    content = document()
    written = content["series"][0]
    written["variants"]["lost"] = {"source_hash": "0" * 64, "parameters": ["WIDTH"]}
    written["shapes"][0]["trials"]["lost"] = [[8, 1.0, 32]]
    written["shapes"][0]["trials"]["tiled"].append([5, 1e-6, 32])  # no value of that parameter
    (series,) = series_of(tmp_path, monkeypatch, content)
    assert "without 2 of 86 trials that are no longer in the space" in series.records[0].shipped
    assert {configuration.variant for configuration in series.records[0].times_ms} == {"tiled", "naive"}


def test_a_variant_with_another_parameter_says_nothing_of_the_present_one(tmp_path, monkeypatch):
    content = document()
    content["series"][0]["variants"]["tiled"]["parameters"] = ["TILE"]
    (series,) = series_of(tmp_path, monkeypatch, content)
    assert {configuration.variant for record in series.records for configuration in record.times_ms} == {"naive"}


def test_each_own_shape_takes_the_place_of_the_nearest():
    assert shipped.undisplaced([{"m": 8}, {"m": 64}], [{"m": 100}], dict) == [{"m": 8}]
    assert shipped.undisplaced([{"m": 8}], [{"m": 100}, {"m": 7}], dict) == []


def test_the_packages_own_files_are_small_and_can_be_predicted_from():
    """Whatever has happened to the kernels since: shapes that hold no trial any more are left out."""
    files = list(shipped.FOLDER.glob("*.json.gz"))
    assert sum(file.stat().st_size for file in files) < 300_000
    series = [
        s for kernel in map(catalogue().get, ("gemm", "gemv")) for s in shipped.shipped_series(kernel, like(kernel))
    ]
    assert [s.device_model for s in series] == ["nvidia-h200"] * 2
    gemv = catalogue().get("gemv")
    problem = gemv.problem({"m": 5000, "n": 700})
    space = gemv.space(problem, series[1].limits)
    predicted = Predictor(gemv, series[1].limits, series[1].records).predict(problem, space.__contains__)
    assert predicted.configuration in space
    assert 0.3 < predicted.library.time_ms / predicted.time_ms < 4


def like(kernel):
    return kernel.problem(dict(kernel.example_shape))


def test_so_many_series_stay_in_memory_and_no_more(monkeypatch):
    monkeypatch.setattr(shipped, "_SERIES", {})
    monkeypatch.setattr(shipped, "KEPT", 2)
    held = []
    for dtype in ("float32", "float16", "float64", "float64", "float32"):
        shipped.shipped_series(GEMM, GEMM.problem({"m": 8, "n": 8, "k": 8}, dtype))
        held.append(len(shipped._SERIES))
    assert held == [1, 2, 1, 1, 2]


def test_guesses_are_made_from_the_nearest_records(tmp_path, monkeypatch):
    (series,) = series_of(tmp_path, monkeypatch, document())
    sizes = (
        [300 * 2**power for power in (5, 1, 7, 0, 3, 2, 6, 4)]
        + [300 // 2**power for power in range(1, 9)]
        + [300 * 2**9] * 4
    )
    records = [replace(series.records[0], problem=GEMM.problem({"m": size, "n": 300, "k": 300})) for size in sizes]
    found = [record.problem.shape["m"] for record in shipped.nearest_of(GEMM, LIKE, records)]
    distances = [abs(np.log2(size / 300)) for size in found]
    assert distances == sorted(distances)
    assert len(found) == shipped.MOST_GUESSED_FROM
    assert 300 * 2**9 not in found
