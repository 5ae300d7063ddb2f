"""Our kernel and PyTorch's call take turns where nothing was measured on this device, and the faster one is kept."""

import threading

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.tuner.errors import TunerError  # noqa: E402
from tilewright.tuner.pytorch.operators.products import GEMM  # noqa: E402
from tilewright.tuner.pytorch.precision import ALLOWED  # noqa: E402
from tilewright.tuner.turns import turns  # noqa: E402
from tilewright.tuner.turns.contest import MOST_CALLS, Contest, Contests, Verdict, octave_of  # noqa: E402
from tilewright.tuner.turns.turns import Search, Turns  # noqa: E402


class Gpu:
    """A stream of the tests' own: what is enqueued takes its time, once the GPU has got so far."""

    def __init__(self, ours_ms, pytorch_ms):
        self.ms = {"ours": ours_ms, "pytorch": pytorch_ms}
        self.enqueued_ms, self.now_ms, self.called = 0.0, 0.0, []

    def run(self, name):
        def call(_arguments):
            self.called.append(name)
            self.enqueued_ms = max(self.enqueued_ms, self.now_ms) + self.ms[name]
            return name

        return call

    def event(self):
        return Event(self)


class Event:
    def __init__(self, gpu):
        self.gpu, self.at_ms = gpu, None

    def record(self):
        self.at_ms = max(self.gpu.enqueued_ms, self.gpu.now_ms)

    def query(self):
        return self.at_ms <= self.gpu.now_ms

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


@pytest.fixture(autouse=True)
def may(monkeypatch):
    monkeypatch.setattr(turns, "may_take_turns", lambda: True)


def turns_of(gpu, contest, decided=lambda _verdict: None, load=lambda: None, expected_ms=1.0):
    """A kind of call on this stream."""
    return Turns(
        gpu.run("ours"),
        gpu.run("pytorch"),
        contest,
        load=load,
        decided=decided,
        expected_ms=expected_ms,
        event=gpu.event,
    )


def decided(gpu, *, prefers_ours=True, is_busy=True, calls=60, load=lambda: None):
    """The verdict after that many calls; None if nothing is decided yet."""
    said = []
    made = turns_of(gpu, Contest(prefers_ours=prefers_ours), said.append, load)
    made.wait()
    for _ in range(calls):
        if is_busy:
            gpu.enqueued_ms += 0.01  # something else of the program
        made(())
        gpu.now_ms = gpu.now_ms if is_busy and len(gpu.called) % 10 else gpu.enqueued_ms
        if said:
            break
    return said[0] if said else None


@pytest.mark.parametrize("prefers_ours", [True, False])
def test_the_faster_one_is_kept_whatever_the_records_say(prefers_ours):
    assert decided(Gpu(2.0, 1.9), prefers_ours=prefers_ours).is_ours is False
    verdict = decided(Gpu(1.0, 1.1), prefers_ours=prefers_ours)
    assert verdict.is_ours
    assert (verdict.ours, verdict.library) == pytest.approx((1, 1.1))
    assert verdict.calls >= 3


@pytest.mark.parametrize("prefers_ours", [True, False])
def test_a_tie_keeps_what_the_records_say(prefers_ours):
    assert decided(Gpu(1.0, 1.0), prefers_ours=prefers_ours).is_ours is prefers_ours


def test_what_is_much_slower_is_given_up_before_its_turns_are_over():
    gpu = Gpu(100.0, 1.0)
    assert decided(gpu).is_ours is False
    assert gpu.called.count("ours") <= MOST_CALLS // 2


def test_calls_that_find_an_idle_gpu_decide_nothing():
    gpu = Gpu(2.0, 1.0)
    verdict = decided(gpu, is_busy=False)
    assert verdict.is_ours
    assert verdict.ours is None
    assert len(gpu.called) == MOST_CALLS + 1


def test_pytorch_computes_while_ours_is_made_ready():
    gpu, is_ready = Gpu(1.0, 1.0), threading.Event()
    made = turns_of(gpu, Contest(prefers_ours=True), load=lambda: is_ready.wait(30))
    assert [made(()) for _ in range(3)] == ["pytorch"] * 3
    is_ready.set()
    made.wait()
    assert {made(()) for _ in range(2)} == {"ours", "pytorch"}


def test_what_cannot_be_loaded_says_so_at_its_first_launch():
    def load():
        raise TunerError("does not compile")

    def ours(_arguments):
        raise TunerError("does not compile")

    gpu = Gpu(1.0, 1.0)
    made = Turns(
        ours,
        gpu.run("pytorch"),
        Contest(prefers_ours=True),
        load=load,
        decided=lambda _verdict: None,
        event=gpu.event,
    )
    made.wait()
    with pytest.raises(TunerError, match="does not compile"):
        made(())


@pytest.mark.parametrize("prefers_ours", [True, False])
def test_where_calls_must_not_differ_nothing_takes_turns(monkeypatch, prefers_ours):
    monkeypatch.setattr(turns, "may_take_turns", lambda: False)
    gpu = Gpu(5.0, 1.0)
    assert decided(gpu, prefers_ours=prefers_ours, calls=30) is None
    assert set(gpu.called) == {"ours" if prefers_ours else "pytorch"}


def test_sizes_of_a_range_share_its_turns():
    """Each size is called once; ours is twice as fast as expected and as PyTorch's at all of them."""
    gpu, contest, said = Gpu(0.0, 0.0), Contest(prefers_ours=False), []
    for size in range(1, MOST_CALLS + 2):
        made = turns_of(gpu, contest, said.append, expected_ms=2.0 * size)
        made.wait()
        gpu.ms = {"ours": 1.0 * size, "pytorch": 2.0 * size}
        gpu.enqueued_ms += 0.01
        made(())
        gpu.now_ms = gpu.enqueued_ms if size % 8 == 0 else gpu.now_ms
    assert len(said) >= 1
    assert said[0].is_ours
    assert (said[0].ours, said[0].library) == pytest.approx((0.5, 1.0))
    assert len(gpu.called) == MOST_CALLS + 1


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_size_that_comes_later_has_the_verdict_of_its_range(monkeypatch, is_ours):
    """Nothing is compiled for it where that is PyTorch's call; where nothing may take turns the verdict holds too."""
    gpu, contest, said, loaded = Gpu(1.0, 1.0), Contest(prefers_ours=not is_ours), [], []
    contest.verdict = Verdict(is_ours, 3, 1.0, 1.5)
    made = turns_of(gpu, contest, said.append, load=lambda: loaded.append("ours"))
    if is_ours:
        made.wait()
    assert made(()) == ("ours" if is_ours else "pytorch")
    assert said == [contest.verdict]
    assert loaded == (["ours"] if is_ours else [])
    monkeypatch.setattr(turns, "may_take_turns", lambda: False)
    assert made(()) == ("ours" if is_ours else "pytorch")


def test_a_range_is_an_octave_of_the_axis_that_comes_with_the_launch():
    kernel = catalogue().get("linear")
    one, other = kernel.variants_from_default[0].space().default(), kernel.variants_from_default[1].space().default()

    def key(m, n=64, configuration=one):
        return octave_of(kernel, kernel.problem({"m": m, "n": n, "k": 64}), configuration)

    assert key(700) == key(1000) != key(1100)
    assert key(700) != key(700, n=65)
    assert key(700) != key(700, configuration=other)
    assert Contests().of(key(700), prefers_ours=True) is not Contests().of(key(700), prefers_ours=True)


def test_off_makes_every_operator_pytorchs_own_and_on_ours_again():
    a, b = torch.randn(6, 5), torch.randn(5, 4)
    tw.gemm(a, b)
    launched = GEMM.plans
    assert launched.direct(a, b, 1.0, ALLOWED) is not None
    tw.off()
    try:
        assert torch.equal(tw.gemm(a, b), a @ b)
        assert launched.direct(a, b, 1.0, ALLOWED) is None
    finally:
        tw.on()
    torch.testing.assert_close(tw.gemm(a, b), a @ b)
    assert launched.direct(a, b, 1.0, ALLOWED) is not None


class Finding:
    """Something that is looked for until the test says that it is found, or what was wrong."""

    def __init__(self, error=None):
        self.found, self.error = threading.Event(), error

    def __call__(self):
        assert self.found.wait(60)
        if self.error is not None:
            raise self.error


def searched(finding, decided):
    def decide(arguments, error):
        decided.append((arguments, error))
        return None if error else lambda given: ("ours", given)

    return Search(finding, lambda given: ("pytorch", given), decide)


def ended(search, arguments):
    """The first result that is not PyTorch's, or the last where something was decided."""
    search._finding.wait()
    return search(arguments)


def test_pytorch_computes_until_a_configuration_is_found():
    finding, decided = Finding(), []
    search = searched(finding, decided)
    assert [search([1]), search([2])] == [("pytorch", [1]), ("pytorch", [2])]
    assert not decided
    finding.found.set()
    assert ended(search, [3]) == ("ours", [3])
    assert search([4]) == ("ours", [4])
    assert decided == [([3], None)]


def test_what_cannot_be_found_stays_pytorchs_and_says_why():
    reason = TunerError("nothing known")
    finding, decided = Finding(reason), []
    search = searched(finding, decided)
    finding.found.set()
    assert ended(search, [3]) == search([3]) == ("pytorch", [3])
    assert decided == [([3], reason)]


def test_what_is_no_error_of_ours_is_left_to_the_decision():
    finding, decided = Finding(ZeroDivisionError()), []
    search = searched(finding, decided)
    finding.found.set()
    assert ended(search, [3]) == ("ours", [3])
    assert decided == [([3], None)]


def test_who_may_not_take_turns_waits_for_the_search(monkeypatch):
    monkeypatch.setattr(turns, "may_take_turns", lambda: False)
    finding, decided = Finding(), []
    search = searched(finding, decided)
    threading.Timer(0.05, finding.found.set).start()
    assert search([1]) == ("ours", [1])


def test_a_call_of_accelerates_is_ours_and_takes_no_turns(monkeypatch):
    from tilewright.tuner.pytorch.acceleration.recognition.call import Call  # noqa: PLC0415 - it registers what the page needs

    seen = []
    monkeypatch.undo()  # what says whether turns may be taken is PyTorch's state again
    monkeypatch.setattr(turns, "_is_capturing", lambda _torch: False)

    def operator(*_arguments):
        seen.append(turns.may_take_turns())
        return torch.zeros(2)

    assert Call(operator, ()).run().shape == (2,)
    assert turns.may_take_turns()
    assert seen == [False]


def test_no_turns_are_taken_in_a_capture_whatever_a_models_code_is_told(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(turns, "_is_capturing", lambda _torch: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert not turns.may_take_turns()


def test_what_loads_beside_the_program_raises_nothing(monkeypatch):
    def fails():
        raise TunerError("it does not compile")

    turns.beside_captures(fails)()
