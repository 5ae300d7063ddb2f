"""The parameters of a source beside those that its declaration passes."""

from dataclasses import replace

import pytest
from contracts.tally import TALLY

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel, Launch, Reference, Scalar, Tensor, Texture, Variant, shape_of
from tilewright.tuner.errors import NoCompilerError
from tilewright.tuner.kernel_check import parameters as own_parameters
from tilewright.tuner.kernel_check.parameters import check_parameters
from tilewright.tuner.kernel_check.report import KernelCheckReport

RIGHT = "REAL a, const REAL* __restrict__ x, REAL* __restrict__ y"
HEAD = "#ifndef REAL\n#define REAL float\n#endif\n"


def told(folder, parameters, *, before="", workspace=0, dtypes=("float32",)):
    """What is said of a source with these parameters, as severities and sentences."""
    source = f'{HEAD}{before}\nextern "C" __global__ void __launch_bounds__(32)\naxpy({parameters}) {{ y[0] = 1; }}\n'
    (folder / "axpy.cu").write_text(source)
    variant = Variant("plain", "axpy.cu", lambda _c, _p: Launch((1, 1, 1), (32, 1, 1)))
    if workspace:
        variant = replace(variant, workspace_bytes=lambda _c, _p: workspace)
    kernel = Kernel(
        name="axpy",
        doc="y = a x + y",
        folder=folder,
        axes=("n",),
        dtypes=dtypes,
        options=(),
        arguments=(
            Scalar("a", lambda _p: 2.0),
            Tensor("x", "input", lambda p: (p.shape["n"],)),
            Tensor("y", "inout", lambda p: (p.shape["n"],)),
        ),
        variants=(variant,),
        flops=lambda _p: 1,
        bytes_moved=lambda _p: 1,
        reference=lambda _p, arrays, _s: Reference(arrays["y"], arrays["y"], 1),
        example_shape={"n": 8},
    )
    report = KernelCheckReport("axpy")
    check_parameters(kernel, report)
    return [(finding.severity, finding.message) for finding in report.findings]


@pytest.fixture(params=["with a compiler", "without"])
def everywhere(request, monkeypatch):
    if request.param == "without":

        def none():
            raise NoCompilerError("there is none")

        monkeypatch.setattr(own_parameters, "find_compiler", none)
    return request.param == "with a compiler"


@pytest.mark.parametrize(
    ("parameters", "before"),
    [
        (RIGHT, ""),
        ("const float a, float const* x, float *y", ""),
        ("REAL a, const float4* x, void* y", ""),
        ("T a, const T* x, T* y", "using U = REAL;\nusing T = U;"),
        ("T a, const T x[], T y[]", "typedef REAL T;"),
        ("/* factor */ REAL a, // one\n const REAL* x, REAL* y", ""),
        ("Own a, const Own* x, Own* y", "template <int N> struct Of {};\nusing Own = Of<3>;"),  # nobody can tell
    ],
)
def test_parameters_as_declared_are_right(tmp_path, everywhere, parameters, before):
    assert told(tmp_path, parameters, before=before) == []


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("int a, const REAL* x, REAL* y", "parameter 1 is `int a`, and the declaration passes a as a `float`"),
        ("unsigned a, const REAL* x, REAL* y", "parameter 1 is `unsigned a`"),
        ("REAL* a, const REAL* x, REAL* y", "declaration passes a as a `float`"),
        ("REAL a, int x, REAL* y", "declaration passes x as an address"),
        ("REAL a, const int* x, REAL* y", "passes x as the address of `float`s"),
        ("REAL a, const REAL* x, const REAL* y", "passes y as its inout, which must not be const"),
        ("const REAL* x, REAL* y", "axpy takes 2 parameters; the declaration passes 3: a, x, y"),
        (f"{RIGHT}, int n", "axpy takes 4 parameters; the declaration passes 3: a, x, y"),
    ],
)
def test_a_parameter_of_another_kind_is_an_error(tmp_path, everywhere, parameters, sentence):
    ((severity, message),) = told(tmp_path, parameters)
    assert severity == "error"
    assert sentence in message
    assert message.startswith("axpy.cu: ")


@pytest.mark.parametrize(
    ("image", "is_texture", "is_right"),
    [
        ("cudaTextureObject_t image", True, True),
        ("const cudaTextureObject_t image", True, True),
        ("const float* image", True, False),
        ("unsigned long long image", True, False),
        ("cudaTextureObject_t image", False, False),
        ("cudaSurfaceObject_t image", False, True),  # nobody can tell
    ],
)
def test_a_texture_is_a_texture_object_in_the_source(tmp_path, everywhere, image, is_texture, is_right):
    (tmp_path / "f.cu").write_text(f'extern "C" __global__ void f({image}, float* y) {{}}')
    tensor = Tensor("image", "input", shape_of("h", "w"), texture=Texture() if is_texture else None)
    kernel = Kernel(
        name="f",
        folder=tmp_path,
        arguments=(tensor, Tensor("y", "output", shape_of("h", "w"))),
        variants=(Variant("plain", "f.cu", lambda _c, _p: Launch((1, 1, 1), (1, 1, 1))),),
        example_shape={"h": 8, "w": 8},
    )
    report = KernelCheckReport("f")
    check_parameters(kernel, report)
    passed = "a texture, for a `cudaTextureObject_t`" if is_texture else "an address"
    said = f"f.cu: parameter 1 is `{image}`, and the declaration passes image as {passed}"
    assert [finding.message for finding in report.findings] == ([] if is_right else [said])


def test_a_type_that_is_right_for_one_dtype_only_is_an_error(tmp_path, everywhere):
    (found,) = told(tmp_path, "float a, const REAL* x, REAL* y", dtypes=("float32", "float64"))
    assert found == ("error", "axpy.cu: parameter 1 is `float a`, and the declaration passes a as a `double`")


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("uint8_t const* k, const int n, REAL f, long long l, REAL* s, std::int32_t* i, int64_t* t", None),
        ("unsigned char* k, unsigned n, REAL f, long l, REAL* s, int* i, long long* t", "2 is `unsigned n`, and the "),
        ("unsigned char* k, int n, REAL f, size_t l, REAL* s, int* i, long* t", "passes limit as a `long long`"),
        ("unsigned char* k, int n, REAL f, long l, REAL* s, REAL* i, long* t", "is_large as the address of `int`s"),
    ],
)
def test_arguments_of_their_own_dtype_are_compared_by_width_and_sign(tmp_path, parameters, sentence):
    (tmp_path / "tally.cu").write_text(f'{HEAD}extern "C" __global__ void tally({parameters}) {{}}')
    report = KernelCheckReport("tally")
    check_parameters(replace(TALLY, folder=tmp_path, dtypes=("float32",)), report)
    assert [finding.severity for finding in report.findings] == ["error"] * (sentence is not None)
    assert sentence is None or sentence in report.findings[0].message


def test_a_workspace_is_the_last_parameter(tmp_path, everywhere):
    assert told(tmp_path, f"{RIGHT}, unsigned char* __restrict__ workspace", workspace=64) == []
    ((_, message),) = told(tmp_path, RIGHT, workspace=64)
    assert "the declaration passes 4: a, x, y, workspace" in message


def test_what_a_macro_hides_is_read_by_the_preprocessor_or_noted(tmp_path, everywhere):
    found = told(tmp_path, "FIRST const REAL* x, REAL* y", before="#define FIRST int a,")
    if everywhere:
        ((severity, message),) = found
        assert (severity, "`int a`" in message) == ("error", True)
    else:
        assert found == [("note", "axpy.cu: the parameters of axpy cannot be read, and were not compared")]


@pytest.mark.in_turn(2)
def test_every_kernel_of_tilewright_takes_what_it_declares(everywhere):
    for kernel in catalogue().kernels():
        report = KernelCheckReport(kernel.name)
        check_parameters(kernel, report)
        assert not [finding for finding in report.findings if finding.severity == "error"]
        assert not (everywhere and report.findings)
