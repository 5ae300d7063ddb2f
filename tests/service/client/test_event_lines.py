from __future__ import annotations

from tilewright.service.client.events import JobEvent, parse_events


def test_events_carry_their_id_name_and_data():
    lines = ["retry: 1000", "", "id: 7", "event: trial", 'data: {"number": 3}', "", ": still there", ""]
    assert list(parse_events(lines)) == [JobEvent("7", "trial", {"number": 3})]


def test_data_over_several_lines_is_joined():
    lines = ["event:state", 'data: {"state":', 'data: "done"}', ""]
    (event,) = parse_events(lines)
    assert event.data == {"state": "done"}
    assert event.is_last


def test_an_event_cut_off_by_a_broken_connection_is_not_handed_out():
    assert list(parse_events(["id: 1", "event: state", 'data: {"state": "done"}'])) == []


def test_the_id_stays_until_another_comes():
    lines = ["id: 4", 'data: {"a": 1}', "", 'data: {"b": 2}', ""]
    assert [event.id for event in parse_events(lines)] == ["4", "4"]


def test_a_running_state_is_not_the_last():
    assert not JobEvent("1", "state", {"state": "running"}).is_last
    assert not JobEvent("1", "trial", {"state": "done"}).is_last
