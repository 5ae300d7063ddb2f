"""The names of queues, and that the database takes the longest of them."""

import uuid

import pytest

from tilewright.service.store.engine_queue import MAX_QUEUE_BYTES, enqueue, queue_of_device, queue_of_model

GPU = "GPU-a4e59a8c-ee12-c98d-bf1f-55a15dc33eab"


@pytest.mark.parametrize("queue", [queue_of_device(GPU), queue_of_model("nvidia-" + "x" * 121)])
def test_a_job_goes_into_a_queue_of_a_long_name(session, queue):
    assert len(queue.encode()) <= MAX_QUEUE_BYTES
    assert enqueue(session, uuid.uuid4(), queue, 0) > 0


def test_queues_differ_and_short_names_stay_readable():
    assert queue_of_model("nvidia-h200") == "model:nvidia-h200"
    assert queue_of_device(GPU) != queue_of_device(GPU.replace("a4e5", "a4e6"))
