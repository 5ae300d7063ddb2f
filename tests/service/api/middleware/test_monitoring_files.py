"""What ships for Prometheus and Grafana names metrics, labels and states that the service really has."""

import json
import re
from pathlib import Path

import pytest
import yaml
from factories import NEW, OLD, Rows
from prometheus_client.parser import text_string_to_metric_families

from tilewright.service.operations.transaction import transaction

FOLDER = Path(__file__).parents[4] / "deploy" / "monitoring"
METRIC = re.compile(r"\btilewright_\w+")
STATE = re.compile(r'tilewright_results\{state="(\w+)"\}')


def expressions() -> list[str]:
    """Every query of the alerts and of the dashboard."""
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.fixture
def samples(client, commit):
    """The samples of the metrics where one result has regressed, after a request that was counted."""
    commit(lambda rows: [rows.best(time_ms=1.0, environment=OLD), rows.best(time_ms=1.5, environment=NEW)])
    client.get("/v1/kernels/gemm/best?device_model=nvidia-h200&shape=m=256,n=100,k=784")
    families = text_string_to_metric_families(client.get("/metrics").text)
    return [sample for family in families for sample in family.samples]


@pytest.fixture
def commit(client):
    """What a function makes of rows, committed."""

    def commit(make):
        with transaction() as session:
            return make(Rows(session))

    return commit


def test_every_metric_that_a_query_names_is_there(samples, client):
    described = set(re.findall(r"^# TYPE (\w+)", client.get("/metrics").text, re.MULTILINE))
    there = {sample.name for sample in samples} | described | {f"{name}_bucket" for name in described}
    named = {name for expr in expressions() for name in METRIC.findall(expr)}
    assert len(named) >= 9
    assert named <= there | {"tilewright_trials_total"}


def test_a_regression_raises_its_alert_and_no_state_is_misspelt(samples):
    counts = {s.labels["state"]: s.value for s in samples if s.name == "tilewright_results"}
    assert (counts["regressed"], counts["tuned"]) == (1, 1)
    assert {state for expr in expressions() for state in STATE.findall(expr)} <= counts.keys()


LABELS = re.compile(r"by \(([\w, ]+)\)|[{,](\w+)[!=]~?=?\"|(?:\$labels\.|\{\{ ?)([a-z]\w+) ?\}\}")
"""Labels in an expression, its matchers, or the text beside it."""

OF_PROMETHEUS = {"instance", "job", "le"}


def queries() -> list[tuple[str, str]]:
    """Every query with all the text that names its labels."""
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    shown = [(rule["expr"], json.dumps(rule["annotations"])) for rule in rules]
    shown += [(one["expr"], one.get("legendFormat", "")) for panel in panels for one in panel["targets"]]
    return [(expr, f"{expr} {text}") for expr, text in shown]


def test_every_label_that_a_query_names_is_one_of_its_metrics(samples):
    known: dict[str, set[str]] = {}
    for sample in samples:
        known.setdefault(sample.name, set()).update(sample.labels)
    named = 0
    for expr, words in queries():
        own = [known[name] for name in METRIC.findall(expr) if name in known]
        found = {label for match in LABELS.finditer(words) for part in match.groups("") for label in part.split(", ")}
        found -= {"", *OF_PROMETHEUS}
        assert not own or found <= set().union(*own), expr
        named += len(found)
    assert named >= 12
