"""Asking on a page: the answer says how it was found, and what it shows can be used as it stands."""

import ast
import html
import re

import pytest
from factories import CPU, H100, TILED_32

from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compiler import compile_nvrtc


def blocks(page: str) -> list[str]:
    """What the page offers to copy, in order."""
    return [html.unescape(text) for text in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)]


EXACT = "/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D256,n%3D100,k%3D784"


def test_without_devices_it_says_to_start_a_worker(page):
    assert "tilewright worker" in page("/ask")


def test_without_a_shape_it_offers_the_example(page, commit):
    commit(lambda rows: rows.device())
    shown = page("/ask?kernel=gemv")
    assert "Every shape has an answer" in shown
    assert "shape=m%3D" in shown


def test_a_tuned_problem_is_answered_exactly_with_its_numbers(page, commit):
    commit(lambda rows: rows.best(time_ms=0.5, library_ms=0.75, configuration=TILED_32))
    shown = page(EXACT)
    for part in ("Exact:", "0.500 ms", "TILE_WIDTH=32", "cuBLAS 13.0", "trial 0"):
        assert part in shown
    assert "To know rather than to guess" not in shown


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D300,n%3D100,k%3D784", "Nearest:"),
        ("/ask?kernel=gemm&device_model=nvidia-h100&shape=m%3D256,n%3D100,k%3D784", "Transferred:"),
        ("/ask?kernel=gemm&device_model=cpu%3Atest&shape=m%3D256,n%3D100,k%3D784", "Default:"),
    ],
)
def test_another_answer_says_how_it_was_found_and_how_to_know_better(page, commit, path, how):
    commit(lambda rows: [rows.best(), rows.device(H100), rows.device(CPU)])
    shown = page(path)
    assert how in shown
    assert any(block.startswith("tilewright tune gemm --shape m=") for block in blocks(shown))


def test_the_curl_line_answers_with_the_same_configuration(client, page, commit):
    commit(lambda rows: rows.best(options={"trans_b": True}, configuration=TILED_32))
    line = next(block for block in blocks(page(EXACT + "&options=trans_b%3Dtrue")) if block.startswith("curl"))
    found = client.get(re.search(r"http://[^/]+(/[^' ]+)", line)[1]).json()
    assert (found["match"], found["configuration"]) == ("exact", {"TILE_WIDTH": 32})


def test_programs_are_python_and_name_every_argument(page, commit):
    commit(lambda rows: rows.best(configuration=TILED_32))
    programs = [block for block in blocks(page(EXACT)) if "import" in block and "def " not in block]
    assert len(programs) >= 2
    for program in programs[:2]:
        ast.parse(program)
    launch = next(program for program in programs if "SourceModule" in program)
    assert re.search(r"gemm\(np\.float32\([\d.]+\), A, B, np\.float32\([\d.]+\), C, block=\(32, 32, 1\)", launch)


def test_a_program_of_several_launches_makes_them_in_order(page, commit):
    values = {"BLOCKS": 132, "TILE_N": 64, "CLUSTER": 1, "PROMOTE_K": 64, "GROUP_M": 8}
    commit(lambda rows: rows.best(configuration=Configuration.of("tensor3xfp16_sm90", values)))
    launch = next(block for block in blocks(page(EXACT)) if "SourceModule" in block)
    ast.parse(launch)
    assert re.findall(r"^(\w+)\(.*, workspace, block=", launch, re.MULTILINE) == ["gemm_survey", "gemm_pack", "gemm"]
    assert launch.count("set_attribute") == 1


def test_the_filled_source_compiles_as_it_stands(page, commit):
    commit(lambda rows: rows.best(configuration=TILED_32))
    source = blocks(page(EXACT))[-1]
    assert "#define TILE_WIDTH 32" in source
    compiled = compile_nvrtc(source, {}, "sm_90", "gemm")
    assert compiled.resources.registers


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("kernel=gemm&shape=m%3D0,n%3D1,k%3D1", "m"),
        ("kernel=gemm&shape=256", "name=value"),
        ("kernel=nothing&shape=m%3D1", "no kernel"),
        ("kernel=gemm&shape=m%3D1,n%3D1,k%3D1&device_model=nothing", "no device model"),
        ("kernel=gemm&shape=m%3D1,n%3D1,k%3D1&options=trans_q%3Dtrue", "trans_q"),
    ],
)
def test_a_question_that_is_wrong_says_why_and_keeps_what_was_typed(page, commit, query, says):
    commit(lambda rows: rows.device())
    shown = page(f"/ask?{query}", 422)
    assert says in shown.split('id="refusal"')[1].split("</p>")[0]
    assert f'value="{html.escape(re.search("shape=([^&]+)", query)[1].replace("%3D", "="))}"' in shown
