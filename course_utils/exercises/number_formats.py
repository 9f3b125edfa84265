"""Exercises of chapter 4, number formats: from the fields of one number to blocks that share a scale."""

import math
import struct

import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.reference import number_formats as nf

INF, NAN = math.inf, math.nan
SPLITS = [(f.exponent_bits, f.mantissa_bits, f.specials) for f in nf.FORMATS]
SMALL = [split for split in SPLITS if sum(split[:2]) < 16]


def bits_of(*patterns):
    """float32 numbers by their bit patterns."""
    return torch.tensor([struct.unpack("f", struct.pack("I", p))[0] for p in patterns])


# ------------------------------------------------------------------------------------ float_fields

float_fields = Exercise(
    nf.float_fields,
    title="Three fields in one integer",
    difficulty=1,
    minutes=5,
    points=1,
    hints=(
        "Write the pattern in binary, 0b1_0111_011, and cut it by hand. Which operations of Python cut integers?",
        "`>>` drops bits on the right; `% 2**n`, or `& (2**n - 1)`, keeps the n lowest.",
        "The sign is what is left above the exponent_bits + mantissa_bits lower bits.",
    ),
)
float_fields.by_hand(
    lambda: [
        (call(0b1_0111_011, 4, 3), (1, 7, 3)),
        (call(0b0_01111_0000000000, 5, 10), (0, 15, 0)),
        (call(0x3DCCCCCD, 8, 23), (0, 123, 0x4CCCCD)),
    ]
)


@float_fields.cases
def _(draw):
    e, m, _ = draw(st.sampled_from(SPLITS))
    yield call(draw(st.integers(0, 2 ** (1 + e + m) - 1)), e, m)


@float_fields.edge
def _():
    yield call(0, 4, 3), "all bits 0"
    yield call(0xFF, 4, 3), "all bits 1"
    yield call(0x80, 4, 3), "only the sign"
    yield call(0b1_101, 3, 0), "a format without mantissa"
    yield call(2**63 + 5, 11, 52), "64 bits"
    yield call(bits=0b0_10_1, exponent_bits=2, mantissa_bits=1), "arguments by name"


float_fields.slips(
    {
        replace(
            "bits >> (exponent_bits + mantissa_bits)", "bits >> exponent_bits"
        ): "You shift the sign past the exponent only. The mantissa lies below it as well.",
        replace(
            "(bits >> mantissa_bits) % 2**exponent_bits", "bits >> mantissa_bits"
        ): "The sign is still in your exponent: after the shift keep the exponent_bits lowest bits.",
        replace(
            "bits >> mantissa_bits", "bits >> exponent_bits"
        ): "You shift by the width of the exponent. What lies to its right is the mantissa.",
        replace(
            "bits % 2**mantissa_bits", "bits % 2**exponent_bits"
        ): "You keep as many mantissa bits as the exponent has. It has mantissa_bits.",
        replace("sign, exponent, bits", "exponent, sign, bits"): "The sign comes first.",
        replace(
            "sign, exponent, bits % 2**mantissa_bits", "sign, bits % 2**mantissa_bits, exponent"
        ): "You return the mantissa before the exponent.",
        replace(
            "% 2**exponent_bits", "% 2**exponent_bits - 2 ** (exponent_bits - 1) + 1"
        ): "You take the bias away. The field as it is stored was asked for; the bias comes later.",
        replace(
            "bits % 2**mantissa_bits", "bits % 2**mantissa_bits / 2**mantissa_bits"
        ): "You turned the mantissa into a fraction. The stored integer was asked for.",
        replace(
            "bits % 2**mantissa_bits", "bits % 2**mantissa_bits + 2**mantissa_bits"
        ): "You added the leading one. It is implied and not stored.",
    }
)


@float_fields.alternative("cut the text of the pattern")
def _(bits, exponent_bits, mantissa_bits):
    text = format(bits, f"0{1 + exponent_bits + mantissa_bits}b")
    cut = 1 + exponent_bits
    return int(text[0]), int(text[1:cut], 2), int(text[cut:] or "0", 2)


@float_fields.alternative("divmod twice")
def _(bits, exponent_bits, mantissa_bits):
    rest, mantissa = divmod(bits, 1 << mantissa_bits)
    sign, exponent = divmod(rest, 1 << exponent_bits)
    return [sign, exponent, mantissa]


# ------------------------------------------------------------------------------------ decode_float

decode_float = Exercise(
    nf.decode_float,
    title="What a pattern stands for",
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "`float_fields` gives the three integers. Which exponent fields are special in this format?",
        "Normal: (1 + mantissa / 2^mantissa_bits) · 2^(exponent - bias). Subnormal: no 1, and the exponent 1 - bias.",
        ("random cases", "Look at `specials` before you look at the value: it decides what the largest exponent means."),
        ("edge cases", "In E4M3 (\"fn\") only one mantissa at the largest exponent is NaN; the others are numbers."),
    ),
)
decode_float.by_hand(
    lambda: [
        (call(0b0_01111_0000000000, 5, 10), 1.0),
        (call(0b1_0111_100, 4, 3, "fn"), -1.5),
        (call(0b0_00000_01, 5, 2), 2.0**-16),
        (call(0b0_11111_00, 5, 2), INF),
        (call(0b0_1111_110, 4, 3, "fn"), 448.0),
        (call(0b0_11_1, 2, 1, "finite"), 6.0),
    ]
)


@decode_float.cases(60)
def _(draw):
    e, m, specials = draw(st.sampled_from(SPLITS))
    sign, field = draw(st.integers(0, 1)), draw(st.integers(0, 2**e - 1))
    yield call(((sign << e | field) << m) | draw(st.integers(0, 2**m - 1)), e, m, specials)


@decode_float.edge
def _():
    yield call(0b0_1111_111, 4, 3, "fn"), "the one NaN of E4M3"
    yield call(0b1_1111_111, 4, 3, "fn"), "and the other, with the sign"
    yield call(0b0_1111_000, 4, 3, "fn"), "E4M3 has no infinity: 256"
    yield call(0b1_11111_00, 5, 2), "minus infinity"
    yield call(0b0_11111_01, 5, 2), "NaN"
    yield call(0b0_11_0, 2, 1, "finite"), "FP4 has neither: 4"
    yield call(0, 5, 10), "zero"
    yield call(1, 8, 23), "the smallest subnormal number of FP32"
    yield call(0x007FFFFF, 8, 23), "the largest subnormal number of FP32"
    yield call(0x00800000, 8, 23), "the smallest normal number of FP32"
    yield call(0x7FEFFFFFFFFFFFFF, 11, 52), "the largest number of FP64"
    yield call(1, 11, 52), "the smallest of FP64"


decode_float.slips(
    {
        replace("fraction * 2.0 ** (1 - bias)", "(1 + fraction) * 2.0 ** -bias"): "You give a "
        "subnormal number the leading one and the exponent 0 - bias. An exponent field of 0 means no "
        "leading one, and the exponent 1 - bias.",
        replace("fraction * 2.0 ** (1 - bias)", "fraction * 2.0**-bias"): "Your subnormal numbers "
        "are half as large as they should be: their exponent is that of the smallest normal number, "
        "1 - bias.",
        replace("2 ** (exponent_bits - 1) - 1", "2 ** (exponent_bits - 1)"): "Your bias is one too "
        "large: it is 2^(exponent_bits - 1) - 1, 127 for eight bits.",
        replace("(1 + fraction) *", "fraction *"): "You left out the leading one. It is implied in "
        "every normal number.",
        replace("float(\"nan\") if mantissa else float(\"inf\")", "float(\"inf\")"): "Only a mantissa "
        "of 0 makes an infinity; with any other the pattern is NaN.",
        replace('specials == "ieee" and ', ""): "You give the largest exponent to infinities and NaN "
        "in every format. \"fn\" and \"finite\" use it for numbers.",
        replace(
            " and mantissa == 2**mantissa_bits - 1", ""
        ): "In an \"fn\" format only one mantissa at the largest exponent is NaN, that of all ones: "
        "E4M3 reaches 448.",
        replace("-value if sign else value", "value"): "You forget the sign.",
        replace('elif specials == "fn" and', "elif"): "You make the pattern of all ones a NaN in every "
        "format. In a \"finite\" format it is the largest number.",
        replace("mantissa / 2**mantissa_bits", "mantissa / (2**mantissa_bits - 1)"): "You divide the "
        "mantissa by its largest value. Its first bit is worth 1/2: divide by 2^mantissa_bits.",
        replace(
            '    elif specials == "fn" and exponent == last and mantissa == 2**mantissa_bits - 1:\n'
            '        value = float("nan")\n',
            "",
        ): "An \"fn\" format has one NaN: exponent and mantissa all ones.",
        replace("mantissa / 2**mantissa_bits", "mantissa / 2**23"): "You divide by 2^23, as in FP32. "
        "The mantissa has mantissa_bits bits.",
    }
)


@decode_float.alternative("an integer times the step of its binade")
def _(bits, exponent_bits, mantissa_bits, specials="ieee"):
    size = bits & (1 << (exponent_bits + mantissa_bits)) - 1
    sign = -1.0 if bits > size else 1.0
    field, mantissa = divmod(size, 1 << mantissa_bits)
    full = (1 << exponent_bits) - 1
    if specials == "ieee" and field == full:
        return NAN if mantissa else sign * INF
    if specials == "fn" and size == (1 << (exponent_bits + mantissa_bits)) - 1:
        return NAN
    if field:
        mantissa += 1 << mantissa_bits
    return sign * math.ldexp(mantissa, max(field, 1) - full // 2 - mantissa_bits)


# ------------------------------------------------------------------------------------ float_limits

float_limits = Exercise(
    nf.float_limits,
    title="The range of a format",
    difficulty=2,
    minutes=15,
    points=2,
    hints=(
        "Which patterns are the four numbers? Write them in bits for FP8 E5M2 first.",
        "Smallest normal: exponent field 1, mantissa 0. Smallest subnormal: exponent field 0, mantissa 1. Epsilon: the last bit of 1.0.",
        ("random cases", "Where is the largest number? \"ieee\" gives the top exponent away; \"fn\" only its last mantissa."),
    ),
)
float_limits.by_hand(
    lambda: [
        (call(5, 10), (65504.0, 2.0**-14, 2.0**-24, 2.0**-10)),
        (call(4, 3, "fn"), (448.0, 2.0**-6, 2.0**-9, 0.125)),
        (call(2, 1, "finite"), (6.0, 1.0, 0.5, 0.5)),
    ]
)


@float_limits.cases
def _(draw):
    e, m = draw(st.integers(2, 10)), draw(st.integers(1, 40))
    yield call(e, m, draw(st.sampled_from(["ieee", "fn", "finite"])))


@float_limits.edge
def _():
    yield call(11, 52), "FP64: 2 ** 1024 would overflow"
    yield call(8, 23), "FP32"
    yield call(8, 7), "BF16: FP32's range"
    yield call(5, 2), "E5M2"
    yield call(exponent_bits=3, mantissa_bits=2, specials="finite"), "arguments by name"


float_limits.slips(
    {
        replace(' - (specials == "ieee")', ""): "Your largest number has the top exponent, which an "
        "\"ieee\" format keeps for infinities and NaN.",
        replace('(specials == "ieee")', "1"): "You keep the top exponent free in every format. \"fn\" "
        "and \"finite\" use it for numbers.",
        replace('(2 if specials == "fn" else 1)', "1"): "In an \"fn\" format the mantissa of all ones "
        "is NaN at the top exponent: the largest number ends in a 0.",
        replace('(2 if specials == "fn" else 1)', '(2 if specials != "finite" else 1)'): "In an "
        "\"ieee\" format the largest number has a mantissa of all ones: NaN lies one exponent above.",
        replace("2 - epsilon *", "1 - epsilon *"): "Your largest number lacks the leading one: "
        "it lies just below 2, times a power of two, not below 1.",
        replace("2.0 ** (1 - bias)", "2.0**-bias"): "Your smallest normal number has the exponent "
        "field 0. That belongs to the subnormal numbers; normal ones begin at 1.",
        replace("smallest_normal * epsilon,", "2.0 ** (1 - bias),"): "Your smallest subnormal number "
        "is the smallest normal one. Below it there are 2^mantissa_bits - 1 more.",
        replace("2.0**-mantissa_bits", "2.0 ** -(mantissa_bits + 1)"): "Your epsilon is half of it. "
        "It is the step from 1 to the next number, not the largest error of rounding.",
        replace("2 ** (exponent_bits - 1) - 1", "2 ** (exponent_bits - 1)"): "Your bias is one too "
        "large: 2^(exponent_bits - 1) - 1.",
        replace("smallest_normal * epsilon, epsilon", "epsilon, smallest_normal * epsilon"): "The last "
        "two are in the other order: smallest subnormal, then epsilon.",
    }
)


@float_limits.alternative("decode the patterns")
def _(exponent_bits, mantissa_bits, specials="ieee"):
    def decode(field, mantissa):
        return nf.decode_float(field << mantissa_bits | mantissa, exponent_bits, mantissa_bits, specials)

    ones, full = 2**mantissa_bits - 1, 2**exponent_bits - 1
    top = {"ieee": (full - 1, ones), "fn": (full, ones - 1), "finite": (full, ones)}[specials]
    bias = full // 2
    return decode(*top), decode(1, 0), decode(0, 1), decode(bias, 1) - 1 if bias else 0.5


# --------------------------------------------------------------------------------------------- ulp

ulp = Exercise(
    nf.ulp,
    title="The step at x",
    difficulty=1,
    minutes=10,
    points=2,
    hints=(
        "Between 2^k and 2^(k+1) a format has 2^mantissa_bits numbers, evenly apart. How far apart?",
        "`math.frexp(x)` gives (f, e) with x = f · 2^e and |f| in [0.5, 1). So k is e - 1.",
        ("edge cases", "The exponent never falls below that of the smallest normal number, 1 - bias."),
    ),
)
ulp.by_hand(
    lambda: [
        (call(1.0, 8, 23), 2.0**-23),
        (call(2048.0, 5, 10), 2.0),
        (call(-300.0, 8, 7), 2.0),
        (call(0.0, 5, 10), 2.0**-24),
    ]
)


@ulp.cases
def _(draw):
    e, m, _ = draw(st.sampled_from(SPLITS[1:]))
    top = 2 ** (e - 1) - 1
    k = draw(st.integers(-min(top, 20) - m, min(top - 1, 20)))
    yield call(draw(st.sampled_from([-1, 1])) * draw(st.integers(16, 31)) / 16 * 2.0**k, e, m)


@ulp.edge
def _():
    yield call(1.9999, 8, 7), "just below a power of two"
    yield call(2.0**-14, 5, 10), "the smallest normal number"
    yield call(2.0**-20, 5, 10), "a subnormal number"
    yield call(2.0**-149, 8, 23), "the smallest number of FP32"
    yield call(65504.0, 5, 10), "the largest number of FP16"
    yield call(-0.0, 8, 7), "minus zero"
    yield call(1e-8, 5, 10), "smaller than all numbers but 0"
    yield call(2.0**53, 11, 52), "FP64"
    yield call(2.0**29, 8, 23), "a power of two whose logarithm must not be rounded"
    yield call(x=5.0, exponent_bits=2, mantissa_bits=1), "arguments by name"


ulp.slips(
    {
        replace("frexp(x)[1] - 1", "frexp(x)[1]"): "Your step is twice too large: math.frexp's "
        "fraction lies in [0.5, 1), so its exponent is one more than that of 1.xxx · 2^k.",
        replace("max(exponent, smallest)", "exponent"): "Below the smallest normal number the step "
        "stays the same. Yours goes on falling.",
        replace("2 - 2 **", "1 - 2 **"): "Your smallest exponent is one too small: that of the smallest "
        "normal number is 1 - bias = 2 - 2^(exponent_bits - 1).",
        replace("2.0 ** (max(exponent, smallest) - mantissa_bits)", "2.0**-mantissa_bits"): "This is "
        "epsilon, the step at 1. At x it is as much larger as x's power of two.",
        replace(
            "2.0 ** (max(exponent, smallest) - mantissa_bits)", "abs(x) * 2.0**-mantissa_bits"
        ): "You scale epsilon by x itself. Steps are constant between two powers of two: scale by the "
        "power of two at or below |x|.",
        replace("- mantissa_bits)", "- mantissa_bits - 1)"): "This is half of the step: the "
        "largest error of rounding to nearest, not the distance of neighbours.",
        replace(" if x else smallest", ""): "0 has no exponent of its own: math.frexp(0) gives 0. "
        "Beside 0 lies the smallest subnormal number.",
        replace("frexp(x)[1] - 1 if x", "frexp(x)[1] - 1 if x > 0"): "You treat negative numbers like "
        "0. Steps do not depend on the sign.",
        replace("- mantissa_bits)", "+ mantissa_bits)"): "The step is smaller than x's power of two by "
        "2^mantissa_bits, not larger.",
    }
)


@ulp.alternative("by comparing with powers of two")
def _(x, exponent_bits, mantissa_bits):
    size, k = abs(x), 2 - 2 ** (exponent_bits - 1)
    while 2.0 ** (k + 1) <= size:
        k += 1
    return 2.0**k / 2**mantissa_bits


@ulp.alternative("the exponent field of the float64, by its bits")
def _(x, exponent_bits, mantissa_bits):
    (bits,) = struct.unpack("q", struct.pack("d", abs(x)))
    k = max((bits >> 52) - 1023, 2 - 2 ** (exponent_bits - 1))
    return math.ldexp(1.0, k - mantissa_bits)
