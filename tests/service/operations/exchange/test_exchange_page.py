"""docs/exchange.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tuned_results import Results

from tilewright.service.api.routes.exchange import MOST_EXPORTS
from tilewright.service.operations.bundles.bundle import FORMAT as BUNDLE_FORMAT
from tilewright.service.operations.bundles.bundle import MAX_RESULTS, bundle
from tilewright.service.operations.exchange.document import MAX_STUDIES, MAX_TRIALS, Document, TrialPart
from tilewright.service.operations.exchange.report import Reason
from tilewright.service.operations.strict_json import read
from tilewright.service.operations.transaction import transaction

PAGE = (Path(__file__).parents[4] / "docs" / "exchange.md").read_text(encoding="utf-8")


def test_the_example_is_a_document():
    (example,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert Document.model_validate_json(example)


def test_every_reason_is_explained_and_no_other_is():
    section = PAGE.split("## Rows that are left out\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [reason.value for reason in Reason]


def test_every_field_of_a_trial_is_named():
    section = PAGE.split("## The format tilewright/1\n")[1].split("\n## ")[0]
    assert [name for name in TrialPart.model_fields if f'"{name}"' not in section and f"`{name}`" not in section] == []


def test_every_member_of_a_bundle_is_explained(measured):
    section = PAGE.split("## Bundles\n")[1]
    with transaction() as session:
        Results(session).device()
        document = read(bundle(session, None, with_sources=True).encode())
    assert BUNDLE_FORMAT in section
    for name in document.keys() - {"format", "made_by"} | document["results"][0].keys():
        assert f"`{name}`" in section, name


@pytest.mark.parametrize("limit", [MAX_STUDIES, MAX_TRIALS, MAX_RESULTS, MOST_EXPORTS])
def test_limits_are_as_stated(limit):
    assert re.search(rf"\b{limit:,}\b", PAGE.split("## Limits\n")[1])
