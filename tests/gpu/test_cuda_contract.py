import pytest
from contracts.device import DeviceContract, children, outcome_of
from contracts.row_sum import PROBLEM, ROW_SUM, configuration
from contracts.tally import KERNELS

from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.isolated.device import Deadlines, IsolatedDevice
from tilewright.tuner.devices.local import DeviceSpec, find_device, list_devices, open_device
from tilewright.tuner.outcome import Outcome

pytestmark = pytest.mark.gpu


def find(name, _folder):
    return KERNELS[name]


RUN_TIMEOUT_S = 3.0


@pytest.fixture(scope="module", params=["nvrtc", "pycuda"])
def cuda(gpu, tmp_path_factory, request):
    spec = DeviceSpec(gpu.uuid, request.param, tmp_path_factory.mktemp("cubin"))
    deadlines = Deadlines(verify=RUN_TIMEOUT_S, sample=RUN_TIMEOUT_S)
    device = IsolatedDevice(spec, deadlines=deadlines, finder=find)
    yield device
    device.close()


class TestCuda(DeviceContract):
    @pytest.fixture
    def device(self, cuda):
        return cuda

    @pytest.mark.parametrize(
        ("variant", "outcomes"),
        [
            ("writes_input", {Outcome.WRONG_RESULT}),
            ("reads_past_end", {Outcome.WRONG_RESULT}),  # what lies there is NaN
            ("shared_past_end", {Outcome.LAUNCH_FAILED, Outcome.WRONG_RESULT}),
        ],
    )
    def test_trespassing_is_found_out(self, device, variant, outcomes):
        bench = device.bench(ROW_SUM, PROBLEM, seed=7)
        outcome, log = outcome_of(bench, configuration(variant))
        assert outcome in outcomes, log
        assert outcome_of(bench, configuration("good"))[0] is Outcome.MEASURED
        bench.close()

    def test_one_bench_survives_every_bug(self, device):
        bench = device.bench(ROW_SUM, PROBLEM, seed=7)
        good = bench.compile(configuration("good"))
        for variant in ("far_out", "endless", "broken", "past_end", "wrong"):
            assert outcome_of(bench, configuration(variant))[0] is not Outcome.MEASURED
            assert bench.verify(good).wrong == 0
        bench.close()

    def test_resources_are_those_of_the_loaded_function(self, device):
        bench = device.bench(ROW_SUM, PROBLEM, seed=7)
        resources = bench.compile(configuration("shuffled", 1024)).resources
        assert resources.shared_bytes == 128
        assert resources.registers > 0
        assert resources.spill_bytes == 0
        assert 0 < resources.occupancy <= 1
        bench.close()


def test_a_pool_compiles_for_the_child(gpu, tmp_path):
    pool = CompilePool(2)
    device = IsolatedDevice(DeviceSpec(gpu.uuid, "nvrtc", tmp_path), finder=find, pool=pool)
    bench = device.bench(ROW_SUM, PROBLEM, seed=7)
    assert outcome_of(bench, configuration("good")) == (Outcome.MEASURED, "")
    assert outcome_of(bench, configuration("broken"))[0] is Outcome.COMPILE_FAILED
    assert outcome_of(bench, configuration("far_out"))[0] is Outcome.LAUNCH_FAILED
    assert outcome_of(bench, configuration("good"))[0] is Outcome.MEASURED
    bench.close()
    before = children()
    device.close()
    assert len(children()) < len(before)


def test_devices_are_found_and_opened_by_name(gpu):
    entry = find_device("cuda:0")
    assert entry in list_devices()
    assert find_device(gpu.uuid) == entry
    device = open_device("cuda:0")
    try:
        assert device.uuid == gpu.uuid
        assert device.model.kind == "cuda"
        assert device.model.limits.compute_capability == entry.compute_capability
        assert device.environment.driver
        assert device.environment.runtime.startswith("PyCUDA ")
    finally:
        device.close()
