"""Exercises of chapter 4, number formats: from the fields of one number to blocks that share a scale."""

import math
import struct

import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.reference import number_formats as nf

INF, NAN = math.inf, math.nan
SPLITS = [(f.exponent_bits, f.mantissa_bits, f.specials) for f in nf.FORMATS]
ALL_AT_ONCE = "all in torch, no Python loop: the number of operations does not grow"
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
    probe=probes.fields,
    hints=(
        "Write the pattern in binary, 0b1_0111_011, and cut it by hand. Which operations of Python cut integers?",
        "`>>` drops bits on the right; `% 2**n`, or `& (2**n - 1)`, keeps the n lowest.",
        "The sign is what is left above the exponent_bits + mantissa_bits lower bits.",
    ),
)
float_fields.by_hand(
    lambda: [
        (call(0b1_0111_011, 4, 3), {"sign": 1, "exponent": 7, "mantissa": 3}),
        (call(0b0_01111_0000000000, 5, 10), {"sign": 0, "exponent": 15, "mantissa": 0}),
        (call(0x3DCCCCCD, 8, 23), {"sign": 0, "exponent": 123, "mantissa": 0x4CCCCD}),
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
    yield call(0x3FEFFFFFFFFFFFFF, 11, 52), "more than 53 bits: a float cannot hold them"
    yield call(2**63 - 1, 11, 52), "all ones but the sign"
    yield call(bits=0b0_10_1, exponent_bits=2, mantissa_bits=1), "arguments by name"


TRUE_DIVISION = (
    "You divide with /, which makes a float of 53 bits: a long FP64 mantissa is rounded up into the "
    "exponent. Cut with >> or //, which stay exact."
)
float_fields.slips(
    {
        replace(
            "bits >> (exponent_bits + mantissa_bits)", "bits >> exponent_bits"
        ): "You shift the sign past the exponent only. The mantissa lies below it as well.",
        replace(
            "bits >> (exponent_bits + mantissa_bits)", "bits >> 31 & 1"
        ): "You take bit 31 for the sign, which is FP32's. In another format it is bit exponent_bits + "
        "mantissa_bits.",
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
        replace("(bits >> mantissa_bits)", "int(bits / 2**mantissa_bits)"): TRUE_DIVISION,
        replace(
            "bits >> (exponent_bits + mantissa_bits)",
            "int(bits / 2**mantissa_bits) >> exponent_bits",
            "(bits >> mantissa_bits)",
            "int(bits / 2**mantissa_bits)",
        ): TRUE_DIVISION,
        replace(
            "bits % 2**mantissa_bits", "(bits % 2**mantissa_bits if mantissa_bits else bits)"
        ): "text[-n:] with n = 0 is the whole text, so a format without mantissa gets all of its bits. Count "
        "from the front: text[1 + exponent_bits:].",
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
        replace(
            "sign, exponent, bits %", "-1 if sign else 1, exponent, bits %"
        ): "You return the sign as 1 or -1. The bit as it is stored was asked for: 0, or 1 for minus.",
        replace(
            "% 2**exponent_bits", "& 2**exponent_bits"
        ): "A mask of n ones is 2^n - 1, (1 << n) - 1. Yours has a single bit, so only that bit of the "
        "exponent comes through.",
        replace(
            "% 2**mantissa_bits", "& 2**mantissa_bits"
        ): "A mask of n ones is 2^n - 1, (1 << n) - 1. Yours has a single bit, and that one lies above "
        "the mantissa.",
        replace(
            "% 2**exponent_bits", "& 1 << exponent_bits - 1"
        ): "`1 << n - 1` is 1 << (n - 1), a single bit: only the highest bit of the exponent comes "
        "through. A mask of n ones is (1 << n) - 1.",
        replace(
            "% 2**mantissa_bits", "& 1 << mantissa_bits - 1"
        ): "`1 << n - 1` is 1 << (n - 1), a single bit: only the highest bit of the mantissa comes "
        "through. A mask of n ones is (1 << n) - 1.",
        replace(
            "% 2**exponent_bits",
            "& 1 << exponent_bits - 1",
            "% 2**mantissa_bits",
            "& 1 << mantissa_bits - 1",
        ): "`1 << n - 1` is 1 << (n - 1), a single bit: only the highest bit of exponent and mantissa "
        "comes through. A mask of n ones is (1 << n) - 1.",
    }
)


@float_fields.mistake(
    "You pad the digits to exponent_bits + mantissa_bits, and the sign is one more. Where it is 0 your first "
    "digit is the exponent's, and all others move by one."
)
def _(bits, exponent_bits, mantissa_bits):
    digits = f"{bits:b}".zfill(exponent_bits + mantissa_bits)
    parts = digits[:1], digits[1 : 1 + exponent_bits], digits[1 + exponent_bits :]
    return tuple(int("0" + part, 2) for part in parts)


UNPADDED = (
    "bin() and format(bits, 'b') leave out leading zeros, so that the text begins at the first 1, and "
    "your fields are cut too far to the right. Pad it to 1 + exponent_bits + mantissa_bits digits."
)


@float_fields.mistake(UNPADDED)
def _(bits, exponent_bits, mantissa_bits):
    text, cut = f"{bits:b}", 1 + exponent_bits
    return int(text[0]), int(text[1:cut] or "0", 2), int(text[cut:] or "0", 2)


@float_fields.mistake(UNPADDED)
def _(bits, exponent_bits, mantissa_bits):
    text, cut = f"{bits:b}", 1 + exponent_bits
    return int(text[0]), int(text[1:cut], 2), int(text[cut:], 2)


@float_fields.mistake(
    "You pad the text to 32 digits, which is right for FP32 only. A pattern has 1 + exponent_bits + "
    "mantissa_bits."
)
def _(bits, exponent_bits, mantissa_bits):
    text, cut = f"{bits:032b}", 1 + exponent_bits
    return int(text[0]), int(text[1:cut], 2), int(text[cut : cut + mantissa_bits] or "0", 2)


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
    probe=probes.signed_number,
    hints=(
        "`float_fields` gives the three integers. Which exponent fields are special in this format?",
        "Normal: (1 + mantissa / 2^mantissa_bits) · 2^(exponent - bias). Subnormal: no 1, and the exponent 1 - bias.",
        (
            "random cases",
            "Look at `specials` before you look at the value: it decides what the largest exponent means.",
        ),
        (
            "edge cases",
            'In E4M3 ("fn") only one mantissa at the largest exponent is NaN; the others are numbers.',
        ),
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
    yield call(0b0_111_11, 3, 2, "fn"), "the NaN of another split"
    yield call(0b0_11111_110, 5, 3, "fn"), "a split whose largest number lies far above 448"
    yield call(0b1_11111_00, 5, 2), "minus infinity"
    yield call(0b0_11111_01, 5, 2), "NaN"
    yield call(0b0_11_0, 2, 1, "finite"), "FP4 has neither: 4"
    yield call(0, 5, 10), "zero"
    yield call(0x8000, 5, 10), "minus zero: -0.0"
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
        replace('float("nan") if mantissa else float("inf")', 'float("inf")'): "Only a mantissa "
        "of 0 makes an infinity; with any other the pattern is NaN.",
        replace(
            'specials == "ieee" and ', ""
        ): "You give the largest exponent to infinities and NaN "
        'in every format. "fn" and "finite" use it for numbers.',
        replace(
            " and mantissa == 2**mantissa_bits - 1", ""
        ): 'In an "fn" format only one mantissa at the largest exponent is NaN, that of all ones: '
        "E4M3 reaches 448.",
        replace(
            "mantissa == 2**mantissa_bits - 1", "mantissa"
        ): 'You make NaN of every mantissa but 0 at the largest exponent. In an "fn" format only that of all ones '
        "is NaN: E4M3 reaches 448.",
        replace(
            "mantissa == 2**mantissa_bits - 1", "mantissa == 7"
        ): "You write out the mantissa of E4M3's NaN, 7. Other splits have other mantissas: all ones is "
        "2^mantissa_bits - 1.",
        replace(
            "exponent == last and mantissa == 2**mantissa_bits - 1",
            "(1 + fraction) * 2.0 ** (exponent - bias) > 448",
        ): 'You make NaN of what lies above 448, which is E4M3\'s end. An "fn" format of another split ends '
        "elsewhere: NaN is exponent and mantissa all ones.",
        replace("-value if sign else value", "value"): "You forget the sign.",
        replace(
            "if sign else value", "if sign and value else value"
        ): "Your zeros have no sign. Where the sign bit is set, zero is -0.0.",
        replace(
            'specials == "fn" and', 'specials == "fn" and not sign and'
        ): 'You miss the NaN of an "fn" format that has the sign bit set. Exponent and mantissa all ones is '
        "NaN with either sign: leave the sign out of the comparison.",
        replace(
            'elif specials == "fn" and', "elif"
        ): "You make the pattern of all ones a NaN in every "
        'format. In a "finite" format it is the largest number.',
        replace(
            "mantissa / 2**mantissa_bits", "mantissa / (2**mantissa_bits - 1)"
        ): "You divide the "
        "mantissa by its largest value. Its first bit is worth 1/2: divide by 2^mantissa_bits.",
        replace(
            '    elif specials == "fn" and exponent == last and mantissa == 2**mantissa_bits - 1:\n'
            '        value = float("nan")\n',
            "",
        ): 'An "fn" format has one NaN: exponent and mantissa all ones.',
        replace(
            "mantissa / 2**mantissa_bits", "mantissa / 2**23"
        ): "You divide by 2^23, as in FP32. The mantissa has mantissa_bits bits.",
        replace(
            "fraction * 2.0 ** (1 - bias)", "(1 + fraction) * 2.0**-bias if mantissa else 0.0"
        ): "You set zero apart and read the other patterns with exponent field 0 like normal numbers. "
        "They have no leading one, and the exponent 1 - bias.",
        replace(
            "fraction * 2.0 ** (1 - bias)", "(1 + fraction) * 2.0 ** (1 - bias)"
        ): "You give a subnormal number, and zero, the leading one. An exponent field of 0 means that "
        "there is none.",
        replace(
            "fraction * 2.0 ** (1 - bias)",
            "(1 + fraction) * 2.0 ** (1 - bias) if mantissa else 0.0",
        ): "You set zero apart and give the other subnormal numbers the leading one. They have none.",
        replace(
            'specials == "ieee" and', 'specials != "fn" and'
        ): 'You treat "finite" like "ieee". Its largest exponent field holds numbers, as any other.',
        replace(
            "if sign else value", 'if sign and value != float("inf") else value'
        ): "You forget the sign of an infinity.",
    }
)


decode_float.mistake(
    'You decode every pattern as a number. "ieee" formats give the largest exponent to infinities and NaN, '
    '"fn" formats the pattern of all ones to NaN.',
    replace(
        'specials == "ieee" and exponent == last',
        "False",
        'specials == "fn" and exponent == last and mantissa == 2**mantissa_bits - 1',
        "False",
    ),
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
    probe=probes.limits,
    hints=(
        "Which patterns are the four numbers? Write them in bits for FP8 E5M2 first.",
        "Smallest normal: exponent field 1, mantissa 0. Smallest subnormal: exponent field 0, mantissa 1. Epsilon: the last bit of 1.0.",
        (
            "random cases",
            'Where is the largest number? "ieee" gives the top exponent away; "fn" only its last mantissa.',
        ),
    ),
)


@float_limits.by_hand
def _():
    names = "largest", "smallest normal", "smallest subnormal", "epsilon"
    for given, limits in {
        (5, 10): (65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
        (4, 3, "fn"): (448.0, 2.0**-6, 2.0**-9, 0.125),
        (2, 1, "finite"): (6.0, 1.0, 0.5, 0.5),
    }.items():
        yield call(*given), dict(zip(names, limits, strict=True))


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
        replace(
            ' - (specials == "ieee")', ""
        ): "Your largest number has the top exponent, which an "
        '"ieee" format keeps for infinities and NaN.',
        replace(
            '(specials == "ieee")', "1"
        ): 'You keep the top exponent free in every format. "fn" and "finite" use it for numbers.',
        replace(
            '(2 if specials == "fn" else 1)', "1"
        ): 'In an "fn" format the mantissa of all ones '
        "is NaN at the top exponent: the largest number ends in a 0.",
        replace('(2 if specials == "fn" else 1)', '(2 if specials != "finite" else 1)'): "In an "
        '"ieee" format the largest number has a mantissa of all ones: NaN lies one exponent above.',
        replace("2 - epsilon *", "1 - epsilon *"): "Your largest number lacks the leading one: "
        "it lies just below 2, times a power of two, not below 1.",
        replace("2.0 ** (1 - bias)", "2.0**-bias"): "Your smallest normal number has the exponent "
        "field 0. That belongs to the subnormal numbers; normal ones begin at 1.",
        replace(
            "smallest_normal * epsilon,", "2.0 ** (1 - bias),"
        ): "Your smallest subnormal number "
        "is the smallest normal one. Below it there are 2^mantissa_bits - 1 more.",
        replace(
            "2.0**-mantissa_bits", "2.0 ** -(mantissa_bits + 1)"
        ): "Your epsilon is half of it. "
        "It is the step from 1 to the next number, not the largest error of rounding.",
        replace("2 ** (exponent_bits - 1) - 1", "2 ** (exponent_bits - 1)"): "Your bias is one too "
        "large: 2^(exponent_bits - 1) - 1.",
        replace(
            "smallest_normal * epsilon, epsilon", "epsilon, smallest_normal * epsilon"
        ): "The last two are in the other order: smallest subnormal, then epsilon.",
        replace(
            "smallest_normal * epsilon, epsilon", "smallest_normal * epsilon, epsilon / 2"
        ): "What you return as epsilon is the largest error of rounding near 1, half of it. Epsilon is "
        "the step from 1 to the next number.",
        replace(
            "smallest_normal * epsilon,", "smallest_normal * epsilon / 2,"
        ): "Your smallest subnormal number is half as large as it should be: subnormal numbers have the "
        "exponent of the smallest normal one, 1 - bias.",
        replace(
            '(specials == "ieee")', '(specials != "fn")'
        ): 'You treat "finite" like "ieee". Its top exponent holds numbers, too.',
        replace(
            '(2 if specials == "fn" else 1)', '(2 if specials != "ieee" else 1)'
        ): 'You treat "finite" like "fn". Its pattern of all ones is no NaN, but the largest number.',
    }
)


@float_limits.mistake(
    "You count in float32, torch's default: what a wide exponent reaches is inf or 0 there, and long "
    "mantissas are rounded. Python's own floats are float64."
)
def _(exponent_bits, mantissa_bits, specials="ieee"):
    return torch.tensor(nf.float_limits(exponent_bits, mantissa_bits, specials)).tolist()


@float_limits.alternative("decode the patterns")
def _(exponent_bits, mantissa_bits, specials="ieee"):
    def decode(field, mantissa):
        return nf.decode_float(
            field << mantissa_bits | mantissa, exponent_bits, mantissa_bits, specials
        )

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
        (
            "edge cases",
            "The exponent never falls below that of the smallest normal number, 1 - bias.",
        ),
    ),
)
ulp.by_hand(
    lambda: [
        (call(1.0, 8, 23), 2.0**-23),
        (call(2048.0, 5, 10), 2.0),
        (call(-300.0, 8, 7), 2.0),
        (call(0.0, 5, 10), 2.0**-24),
        (call(0.75, 8, 7), 2.0**-8),
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
    yield call(2.0**-29, 8, 23), "and a small one"
    yield (
        call(math.nextafter(1024.0, 0.0), 11, 52),
        "so close below 1024 that its log2 rounds to 10",
    )
    yield call(-math.nextafter(0.125, 0.0), 8, 7), "so close to -1/8 that log2 of |x| rounds to -3"
    yield call(x=5.0, exponent_bits=2, mantissa_bits=1), "arguments by name"


ulp.slips(
    {
        replace("frexp(x)[1] - 1", "frexp(x)[1]"): "Your step is twice too large: math.frexp's "
        "fraction lies in [0.5, 1), so its exponent is one more than that of 1.xxx · 2^k.",
        replace(
            "max(exponent, smallest)", "min(max(exponent, smallest), 2 ** (exponent_bits - 1) - 1)"
        ): "You cut the exponent off where IEEE's infinities begin. Formats without infinities go on, and x is "
        "within the range: no upper limit is needed.",
        replace("max(exponent, smallest)", "exponent"): "Below the smallest normal number the step "
        "stays the same. Yours goes on falling.",
        replace(
            "2 - 2 **", "1 - 2 **"
        ): "Your smallest exponent is one too small: that of the smallest "
        "normal number is 1 - bias = 2 - 2^(exponent_bits - 1).",
        replace(
            "2.0 ** (max(exponent, smallest) - mantissa_bits)", "2.0**-mantissa_bits"
        ): "This is epsilon, the step at 1. At x it is as much larger as x's power of two.",
        replace(
            "2.0 ** (max(exponent, smallest) - mantissa_bits)", "abs(x) * 2.0**-mantissa_bits"
        ): "You scale epsilon by x itself. Steps are constant between two powers of two: scale by the "
        "power of two at or below |x|.",
        replace("- mantissa_bits)", "- mantissa_bits - 1)"): "This is half of the step: the "
        "largest error of rounding to nearest, not the distance of neighbours.",
        replace(" if x else smallest", ""): "0 has no exponent of its own: math.frexp(0) gives 0. "
        "Beside 0 lies the smallest subnormal number.",
        replace(
            "frexp(x)[1] - 1 if x", "frexp(x)[1] - 1 if x > 0"
        ): "You treat negative numbers like 0. Steps do not depend on the sign.",
        replace(
            "max(exponent, smallest) - mantissa_bits", "max(exponent - mantissa_bits, smallest)"
        ): "You keep the step itself at the smallest normal number or above. It is the exponent of x that "
        "stops there, at 1 - bias; the step is smaller by 2^mantissa_bits.",
        replace(
            "- mantissa_bits)", "+ mantissa_bits)"
        ): "The step is smaller than x's power of two by 2^mantissa_bits, not larger.",
    }
)


ulp.mistake(
    "You round log2 to the nearest integer. The step is that of the power of two at or below |x|: take "
    "the floor.",
    replace("frexp(x)[1] - 1 if x", "frexp(x * 2**0.5)[1] - 1 if x"),
)


def by_logarithm(whole):
    """ulp by floating-point logarithms. whole: size → the exponent of the power of two at or below it."""

    def ulp(x, exponent_bits, mantissa_bits):
        size = max(abs(x), 2.0 ** (2 - 2 ** (exponent_bits - 1)))
        return 2.0 ** (whole(size) - mantissa_bits)

    return ulp


ulp.mistake(
    "log2 rounds: just below a power of two it gives a whole number, and your step is twice too "
    "large. math.frexp gives the exponent exactly.",
)(by_logarithm(lambda size: math.floor(math.log2(size))))
ulp.mistake(
    "log(x) / log(2), which math.log(x, 2) is as well, is rounded: at some powers of two it lies below the "
    "whole number, and just below others it reaches it. math.frexp gives the exponent exactly.",
)(by_logarithm(lambda size: math.floor(math.log(size, 2))))
ulp.mistake(
    "ceil(log2 |x|) - 1 counts a power of two to the interval below it: at 1 your step is half of epsilon. "
    "A power of two begins its interval: take the floor, or better math.frexp.",
    replace("frexp(x)[1] - 1 if x", "frexp(x)[1] - 1 - (abs(frexp(x)[0]) == 0.5) if x"),
)
ulp.mistake(
    "int() cuts towards zero. Below 1 the logarithm is negative: take the floor, or better math.frexp.",
)(by_logarithm(lambda size: int(math.log2(size))))


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


# -------------------------------------------------------------------------------- encode_bfloat16

LOOPED = torch.linspace(-3.0, 3.0, 7), torch.linspace(-3.0, 3.0, 4096)

encode_bfloat16 = Exercise(
    nf.encode_bfloat16,
    title="Round to BF16, by its bits",
    difficulty=2,
    minutes=25,
    points=3,
    formats={"int32": "#06x"},
    hints=(
        "BF16 is the upper half of a float32. `x.view(torch.int32)` gives the bits; what must happen before you drop the lower sixteen?",
        "Adding 0x8000 and cutting rounds to nearest, ties away from zero. For ties to even, add 0x7FFF, and 1 more if the last bit that stays is 1.",
        "`>>` on int32 repeats the sign: keep 16 bits with `& 0xFFFF`.",
        (
            "edge cases",
            "Adding to a NaN's bits can carry it into an infinity, or into minus zero. Set NaN apart.",
        ),
    ),
)
TIES = bits_of(0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0xBF808000, 0xBF818000)
encode_bfloat16.by_hand(
    lambda: [
        (
            call(torch.tensor([1.0, -2.0, 0.0])),
            torch.tensor([0x3F80, 0xC000, 0], dtype=torch.int32),
        ),
        # 1 + 2^-8 lies halfway between 0x3F80 and 0x3F81; the even one is 0x3F80
        (call(bits_of(0x3F808000)), torch.tensor([0x3F80], dtype=torch.int32)),
        # 1 + 3 · 2^-8 lies halfway between 0x3F81 and 0x3F82
        (call(bits_of(0x3F818000)), torch.tensor([0x3F82], dtype=torch.int32)),
    ]
)


@encode_bfloat16.cases
def _(draw):
    high = draw(st.lists(st.integers(0, 0xFF7E), min_size=1, max_size=4))
    low = st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]) | st.integers(0, 0xFFFF)
    patterns = [p << 16 | draw(low) for p in high if p & 0x7F80 != 0x7F80]
    yield call(bits_of(*patterns))


@encode_bfloat16.edge
def _():
    yield call(TIES), "ties, their neighbours, and negative ones"
    yield call(torch.tensor([INF, -INF])), "infinities"
    yield call(bits_of(0x7FC00000)), "NaN"
    yield call(bits_of(0xFFC00000)), "a NaN with the sign: every NaN becomes 0x7FC0"
    yield call(bits_of(0x7FFFFFFF)), "NaN with all bits set: a carry must not leave it"
    yield call(bits_of(0xFFFFFFFF)), "and the same with the sign"
    yield call(bits_of(0x7F800001)), "NaN whose bits lie in the half that is cut"
    yield call(bits_of(0x7F7FFFFF, 0xFF7FFFFF)), "the largest float32 rounds to infinity"
    yield call(bits_of(0x7F7F7FFF)), "the largest that stays finite"
    yield call(torch.tensor([-0.0])), "minus zero"
    yield call(bits_of(1, 0x00008001, 0x807F8000)), "subnormal numbers"
    yield call(torch.tensor(3.14159)), "no axes"
    yield call(torch.zeros(0, 3)), "no elements"
    yield call(draws.scattered(torch.linspace(-3.0, 3.0, 6).view(2, 3))), "not contiguous"


encode_bfloat16.contract(contracts.constant_kernels([call(x) for x in LOOPED], ALL_AT_ONCE))
encode_bfloat16.slips(
    {
        replace(
            "(bits + 0x7FFF + odd) >> 16", "bits >> 16"
        ): "You cut the lower half off. That rounds "
        "towards zero, and the sum of many roundings drifts with it.",
        replace(
            "0x7FFF + odd", "0x8000"
        ): "You round ties away from zero: 0x8000 always carries. Add "
        "0x7FFF, and 1 more only if the last bit that stays, bit 16, is 1.",
        replace(
            "0x7FFF + odd", "0x7FFF"
        ): "You round ties towards zero. Add 1 more if the last bit that stays is 1.",
        replace(
            "0x7FFF + odd", "0x7FFF + (1 - odd)"
        ): "You round ties to odd: one is added where the last bit that stays is 0.",
        replace(">> 16 & 0xFFFF", ">> 16"): "Negative numbers come out negative: `>>` repeats the "
        "sign bit. Keep 16 bits with & 0xFFFF.",
        replace(
            ".masked_fill(x.isnan(), 0x7FC0)", ""
        ): "You round a NaN like a number: a carry makes "
        "another number of it, and where its bits lie in the lower half an infinity. Set it to 0x7FC0.",
        replace(
            "0x7FC0", "0x7F80"
        ): "0x7F80 is infinity. A NaN has a mantissa that is not 0: 0x7FC0.",
        replace(
            "x.float().view(torch.int32)", "x.int()"
        ): "x.int() converts the numbers to integers. The bits "
        "as they are come from x.view(torch.int32).",
        replace(
            ".masked_fill(x.isnan(), 0x7FC0)", ".where(~x.isnan(), bits >> 16 & 0x8000 | 0x7FC0)"
        ): "You keep the sign of a NaN. Every NaN becomes 0x7FC0, without it.",
        replace(
            ".masked_fill(x.isnan(), 0x7FC0)", ".where(~x.isnan(), bits >> 16 & 0xFFFF | 0x40)"
        ): "You keep the upper half of a NaN's bits. Every NaN becomes 0x7FC0.",
        replace(
            "x.isnan()",
            "nan",
            "    odd",
            "    nan = x.isnan()\n    odd",
            "(bits + 0x7FFF + odd)",
            "bits.add_(0x7FFF + odd)",
        ): "You add in place to a view of x, and a view has no memory of its own: the caller's numbers "
        "change. Make a new tensor, with + instead of +=.",
        replace("0x7FC0", "0xFFFF"): "Your NaN is 0xFFFF, as a cast of torch's may give. Every NaN "
        "becomes 0x7FC0.",
        replace(
            "x.isnan()", "~x.isfinite()"
        ): "You turn infinities into NaN. They have bits of their "
        "own, 0x7F80 and 0xFF80, and the carry never reaches them.",
    }
)
encode_bfloat16.mistake(
    "Your values are right, but you go through the elements in Python. All bits can be shifted at once.",
    replace(
        "    odd = (bits >> 16) & 1",
        "    odd = torch.tensor([b >> 16 & 1 for b in bits.flatten().tolist()]).int().view(x.shape)",
    ),
    cost=True,
)


@encode_bfloat16.alternative("torch's own cast, NaN set apart")
def _(x):
    patterns = x.to(torch.bfloat16).view(torch.int16).to(torch.int32)
    return torch.where(x.isnan(), 0x7FC0, patterns % 65536)


@encode_bfloat16.alternative("by what is cut: more than half, or half and odd")
def _(x):
    wide = x.contiguous().view(torch.int32).long() % 2**32
    kept, cut = wide // 2**16, wide % 2**16
    up = (cut > 2**15) | ((cut == 2**15) & (kept % 2 == 1))
    kept = kept + up.long()
    kept[x.isnan()] = 0x7FC0
    return kept.to(torch.int32)


# ------------------------------------------------------------------------------- stochastic_round

stochastic_round = Exercise(
    nf.stochastic_round,
    title="Round up with the right chance",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.exact_values,
    hints=(
        "The lower 16 bits of the float32 say how far x has gone from the BF16 number nearer to 0 to the next one.",
        "As a fraction that is `(bits & 0xFFFF) / 65536`. Where u is less, the upper half of the bits grows by 1.",
        "Growing the upper half by 1 moves away from zero, for negative numbers too: sign and size are stored apart.",
        ("edge cases", "What is a BF16 number already has fraction 0, and no u is less than 0."),
    ),
)
HALFWAY, QUARTER, MOST = bits_of(0x3F808000), bits_of(0x3F804000), bits_of(0x3F80C000)


@stochastic_round.by_hand
def _():
    yield call(HALFWAY, torch.tensor([0.4])), [1.0078125]
    yield call(HALFWAY, torch.tensor([0.6])), [1.0]
    yield call(-QUARTER, torch.tensor([0.2])), [-1.0078125]
    yield call(-QUARTER, torch.tensor([0.3])), [-1.0]
    yield call(MOST, torch.tensor([0.7])), [1.0078125]
    yield call(MOST, torch.tensor([0.9])), [1.0]


@stochastic_round.cases
def _(draw):
    shape = draw(draws.shapes(max_dims=2, among=(1, 2, 3), min_dims=1))
    x = draw(draws.tensors(shape, scale=2.0 ** draw(st.integers(-20, 20))))
    u = torch.rand(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9999))))
    yield call(x, u)


@stochastic_round.edge
def _():
    half, zero = torch.tensor([0.5]), torch.zeros(1)
    yield call(torch.tensor([1.5, 0.0, -2.0]), torch.zeros(3)), "already BF16: nothing moves, u = 0"
    yield call(bits_of(0x3F800001), zero), "the lowest bit alone makes a fraction"
    yield call(HALFWAY, half), "u equal to the fraction: down"
    yield call(bits_of(0x3F80FFFF), torch.tensor([0.9999])), "almost at the next number"
    yield call(bits_of(0x3FFFFFFF), zero), "up into the next power of two"
    yield call(bits_of(0x7F7FC000), zero), "beyond the largest finite number, up is infinity"
    yield call(bits_of(0x7F7FC000), torch.tensor([0.9])), "and down is the largest"
    yield call(bits_of(0xFF7FC000), half), "away from zero of a negative one is minus infinity"
    yield call(bits_of(0x7F7FFFFF), torch.tensor([0.99999])), "an infinite b counts as 2^128"
    yield call(torch.tensor([INF, -INF]), torch.zeros(2)), "infinities"
    yield call(bits_of(0x00004000, 0x80004000), torch.tensor([0.1, 0.3])), "subnormal numbers"
    yield call(torch.tensor(1.001), torch.tensor(0.01)), "no axes"
    yield call(torch.zeros(0, 2), torch.zeros(0, 2)), "no elements"
    x = torch.linspace(-3.0, 3.0, 6).view(2, 3)
    yield call(draws.scattered(x), draws.scattered(x.abs() / 4)), "not contiguous"


stochastic_round.contract(
    contracts.constant_kernels([call(x, x.abs() / 4) for x in LOOPED], ALL_AT_ONCE)
)
stochastic_round.slips(
    {
        replace(
            "u < fraction", "u < 0.5"
        ): "You toss a fair coin, wherever x lies. The chance of going "
        "up is the part of the way that x has gone.",
        replace(
            "u < fraction", "u > fraction"
        ): "The chance is the wrong way round: a number close to "
        "the lower neighbour mostly goes up.",
        replace(
            "u < fraction", "fraction >= 0.5"
        ): "You round to nearest and leave u aside: the mean of many roundings is not x.",
        replace(
            "u < fraction", "(u > fraction) & (fraction > 0)"
        ): "The chance is the wrong way round: what lies close to the lower neighbour mostly goes up. "
        "Numbers that need no rounding you set apart rightly.",
        replace(
            "u < fraction", "u <= fraction"
        ): "You go up where u equals the fraction, so a number "
        "that needs no rounding moves where u is 0.",
        replace(
            "u < fraction", "(u <= fraction) & x.isfinite()"
        ): "You go up where u equals the fraction, so a finite number that needs no rounding moves "
        "where u is 0.",
        replace(
            "u < fraction", "u >= 1 - fraction"
        ): "You go up where u is at least 1 minus the part, as if u were added to the bits that are cut. "
        "The chances are right; but where u is small, less than the part, up was asked for.",
        replace(
            "u < fraction",
            "(u < fraction) | (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) > (bits >> 16))",
        ): "You start from the nearest bfloat16 number: what lies past the middle always goes up. Start "
        "from the one nearer to zero; cut the bits instead of rounding them.",
        replace(
            "u < fraction",
            "torch.where(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) > (bits >> 16), u >= 1 - fraction, "
            "u < fraction)",
        ): "You start from the nearest bfloat16 number, and small u take you away from it. The chances "
        "are right; but small u lead to the number farther from zero, on either side of the middle.",
        replace(
            "u < fraction",
            "(u < fraction) & ((bits >> 16) + 1 << 16).view(torch.float32).isfinite()",
        ): "Beyond the largest finite number b is infinite, so your p is 0 and you never go up. Count b as "
        "±2^128 there, or take p from the sixteen bits that are cut.",
        replace(
            "u < fraction",
            "(u < fraction) & ((x > 0) | ((bits >> 16) + 1 << 16).view(torch.float32).isfinite())",
        ): "Where b is minus infinity your p is 0, so you never get there. It counts as -2^128, as plus infinity "
        "counts as 2^128.",
        replace(
            "u < fraction",
            "u < fraction.where(((bits >> 16) + 1 << 16).view(torch.float32).isfinite(), "
            "(bits & 0xFFFF) / 65535)",
        ): "You count an infinite b as the largest float32, a little less than 2^128. It counts as ±2^128.",
        replace("u < fraction", "fraction > 0"): "You always round away from zero.",
        replace(
            "((bits >> 16) + up)", "(bits >> 16)"
        ): "You always cut: that rounds towards zero, and u plays no part.",
        replace(
            "+ up)", "+ up * bits.sign())"
        ): "You subtract for negative numbers. Sign and size are "
        "stored apart: adding 1 to the pattern moves away from zero for both.",
        replace("/ 2**16", "/ 2**15"): "Your fraction is twice too large: sixteen bits are cut, so "
        "divide by 65536.",
        replace(".bfloat16()", ""): "Your numbers are right, and float32. bfloat16 was asked for.",
        replace(
            "(bits & 0xFFFF) / 2**16", "x - x.floor()"
        ): "You take x's part after the point. The neighbours are BF16 numbers, not integers.",
    }
)
stochastic_round.mistake(
    "Your values are right, but you go through the elements in Python. All can be rounded at once.",
    replace(
        "u < fraction",
        "torch.tensor([float(a) < float(b) for a, b in zip(u.flatten(), fraction.flatten())])"
        ".int().view(x.shape)",
    ),
    cost=True,
)


stochastic_round.mistake(
    "For negative numbers you go towards zero where u is small. The chances are right, but the number to "
    "take where u is less than the part of the way is the one farther from zero, for both signs.",
    replace("u < fraction", "torch.where(x < 0, 1 - u <= fraction, u < fraction)"),
)


@stochastic_round.alternative("random low bits are added, then cut, as hardware does")
def _(x, u):
    noise = (65535 - (u.double() * 65536).floor()).int()
    bits = x.contiguous().view(torch.int32)
    exact = bits & 0xFFFF == 0
    return torch.where(exact, bits, (bits + noise) & -65536).view(torch.float32).bfloat16()


@stochastic_round.alternative("by the two neighbours as numbers")
def _(x, u):
    wide = x.double()
    low = (x.contiguous().view(torch.int32) >> 16 << 16).view(torch.float32)
    step = ((x.contiguous().view(torch.int32) >> 16 << 16) + 65536).view(torch.float32)
    there = (
        (wide - low) / (step.double().nan_to_num(0.0, 2.0**128, -(2.0**128)) - low)
    ).nan_to_num(0.0)
    return torch.where(u < there, step, low).bfloat16()


# -------------------------------------------------------------------------------------- kahan_sum

kahan_sum = Exercise(
    nf.kahan_sum,
    title="Keep what rounding takes",
    difficulty=2,
    minutes=20,
    points=3,
    length=lambda case: 1,
    hints=(
        "After `grown = total + term`, how much of the term has really arrived?",
        "`grown - total` has arrived. The rest, `term - (grown - total)`, belongs to the next term.",
        "Per row: wanted = term + lost; grown = total + wanted; lost = wanted - (grown - total); total = grown.",
        ("contracts", "total and lost keep the dtype of x; nothing is as large as x or wider."),
    ),
)
CRUMBS = torch.cat([torch.ones(1), torch.full((512,), 2.0**-25)])
CANCELLING = torch.tensor([0.75, -0.25, -0.5]) * 2.0**-23
STEPS_OF_TWO = torch.tensor([2.0**24] + [0.75, 0.75, 1.5] * 200)  # from 2^24 on a float32 is even
kahan_sum.by_hand(
    lambda: [
        (call(torch.tensor([1.0, 2.0, 4.0])), torch.tensor(7.0)),
        (call(torch.ones(600).bfloat16()), torch.tensor(600.0).bfloat16()),
        (call(CRUMBS), torch.tensor(1 + 2.0**-16)),
        (call(STEPS_OF_TWO), torch.tensor(2.0**24 + 600)),
    ]
)


@kahan_sum.cases(24)
def _(draw):
    n, width = draw(st.integers(2, 24)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    yield call(draw(draws.tensors((n, width), dtype)).abs())


@kahan_sum.cases(8)
def _(draw):
    n, dtype = draw(st.integers(300, 600)), draw(st.sampled_from([torch.float32, torch.bfloat16]))
    crumb = torch.finfo(dtype).eps / draw(st.sampled_from([3, 4, 5]))
    yield call(torch.tensor([[1.0, -2.0]] + [[crumb, -2 * crumb]] * n).to(dtype))


@kahan_sum.edge
def _():
    yield call(torch.zeros(0)), "no terms"
    yield call(torch.zeros(0, 3)), "no terms, three sums"
    yield call(torch.zeros(0, 3).bfloat16()), "no terms, in bfloat16"
    yield call(torch.tensor([5.0])), "one term"
    yield call(torch.full((1000,), 0.1).half()), "float16"
    yield call(CRUMBS.double() * 1.1), "float64"
    yield call(torch.tensor([1.0, NAN, 2.0])), "NaN"
    yield call(torch.arange(24.0).view(2, 3, 4)), "two axes remain"
    yield call(draws.scattered(torch.arange(6.0).view(3, 2))), "not contiguous"
    yield call(torch.cat([torch.ones(1), CANCELLING.repeat(200)])), "crumbs that cancel, beside 1"


kahan_sum.contract(
    contracts.largest_tensor(
        [call(torch.ones(6, 256)), call(torch.ones(40, 128).bfloat16())],
        limit=lambda case: case.args[0][0].numel() * case.args[0].element_size(),
        says="no tensor larger than the result: all in the dtype of x, one term at a time",
    )
)
kahan_sum.slips(
    {
        replace(
            "wanted = term + lost", "wanted = term"
        ): "This is the plain running sum: nothing of what is lost reaches the next term. Hand it on, and "
        "compute it as wanted - (grown - total); (total + wanted) - grown is always 0.",
        replace(
            "wanted - (grown - total)", "wanted - grown - total"
        ): "The brackets matter: grown - total is what has arrived, and that is taken from wanted.",
        replace(
            "wanted - (grown - total)", "wanted - grown + total"
        ): "wanted - grown is rounded like grown itself, and what was lost is lost in it again. grown - "
        "total, what has arrived, is exact: put the brackets there.",
        replace(
            "term + lost", "term - lost"
        ): "Your compensation has the wrong sign: it takes away once "
        "more what rounding took. With lost = wanted - (grown - total) it is added to the next term, "
        "with the opposite sign subtracted.",
        replace(
            "        lost = wanted - (grown - total)\n        total = grown",
            "        total = grown\n        lost = wanted - (grown - total)",
        ): "You update the total first, so that grown - total is 0 and everything counts as lost.",
        replace(
            "lost = wanted -", "lost = term -"
        ): "You compare what arrived with the term alone. "
        "What was lost before was also to be added: compare with wanted.",
        replace(
            "lost = wanted -", "lost = lost + wanted -"
        ): "You add up all losses and hand on the "
        "sum each time, though the earlier ones have been added already.",
        replace(
            "wanted = term + lost",
            "wanted = term",
            "lost = wanted - (grown - total)",
            "lost = lost + (wanted - (grown - total))",
            "return total",
            "return total + lost",
        ): "You collect what was lost and add it at the end. In a long sum the collected losses lose bits "
        "in their turn: hand each to the next term.",
        replace(
            "x.new_zeros(x.shape[1:])", "x[0] - x[0]"
        ): "You start from x[0]: a sum of no terms is 0, and x[0] raises.",
        replace(
            "    total = lost",
            "    if len(x) == 0:\n        return torch.zeros(x.shape[1:])\n    total = lost",
        ): "Where there are no terms your zeros are float32, torch's default. The result has the dtype of x.",
        replace("for term in x", "for term in x[1:]"): "The first term is missing.",
    }
)
kahan_sum.mistake(
    "You add up in float64 and round once. That is right, and not what was asked: no tensor may be "
    "wider than x. On a GPU float64 is slow, or missing.",
    cost=True,
)(lambda x: x.double().sum(0).to(x.dtype))


kahan_sum.mistake(
    "You add up in float32, one term after the other. For 16-bit numbers that hides the problem, and for "
    "float32 it is the plain running sum: compensate in the dtype of x."
)(lambda x: sum(x.float().unbind(0), torch.zeros(x.shape[1:])).to(x.dtype))
kahan_sum.mistake(
    "Where there are no terms you return the Python number that you started from. The result is a tensor "
    "of zeros, of the shape of a row and the dtype of x.",
    replace("x.new_zeros(x.shape[1:])", "0.0"),
)


kahan_sum.mistake(
    "You compensate, but in float32: for a 16-bit x, total and lost are twice as wide as they may be. "
    "Start from zeros in the dtype of x.",
    replace(
        "x.new_zeros(x.shape[1:])",
        "torch.zeros(x.shape[1:])",
        "return total",
        "return total.to(x.dtype)",
    ),
    cost=True,
)
kahan_sum.mistake(
    "You compensate, but in float64: total and lost are wider than x, which they may not be. Start from "
    "zeros in the dtype of x.",
    replace(
        "x.new_zeros(x.shape[1:])",
        "torch.zeros(x.shape[1:], dtype=torch.float64)",
        "return total",
        "return total.to(x.dtype)",
    ),
    cost=True,
)


@kahan_sum.alternative("the error of each addition by Knuth's TwoSum, for terms of any size")
def _(x):
    total = torch.zeros_like(x[0]) if len(x) else torch.zeros(x.shape[1:], dtype=x.dtype)
    lost = torch.zeros_like(total)
    for i in range(len(x)):
        term = x[i] + lost
        grown = total + term
        arrived = grown - total
        lost = (total - (grown - arrived)) + (term - arrived)
        total = grown
    return total


@kahan_sum.alternative("with the opposite sign, as Kahan wrote it")
def _(x):
    s = torch.zeros(x.shape[1:], dtype=x.dtype)
    c = torch.zeros(x.shape[1:], dtype=x.dtype)
    for row in x.unbind(0):
        y = row - c
        t = s + y
        c = (t - s) - y
        s = t
    return s


# -------------------------------------------------------------------------------------- logsumexp

logsumexp = Exercise(
    nf.logsumexp,
    title="A sum of exponentials that never overflows",
    difficulty=1,
    minutes=15,
    points=2,
    gradients=("x",),
    stand_in="torch.logsumexp",
    stand_in_note="torch.logsumexp has no default for `dim`: it must be given.",
    hints=(
        "exp(89) is infinite in float32. What may you subtract from all x before exp, if you add it again after log?",
        "log Σ exp(x) = c + log Σ exp(x - c) for every c. With c the largest x, no exp is above 1 and one is 1.",
        ("edge cases", "inf - inf is NaN. Where the largest is infinite, subtract 0 instead."),
        ("gradients", "The result does not depend on c, so c needs no gradient: detach it."),
    ),
)
logsumexp.by_hand(
    lambda: [
        (call(torch.zeros(2, 4)), torch.full((2,), math.log(4.0))),
        (call(torch.tensor([1000.0, 1000.0])), torch.tensor(1000.0 + math.log(2.0))),
        (call(torch.tensor([[-1000.0, -2000.0]]), 0), torch.tensor([-1000.0, -2000.0])),
    ]
)


@logsumexp.cases(24)
def _(draw):
    shape = draw(draws.shapes(max_dims=3, among=(2, 3, 5), min_dims=1))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    scale = draw(st.sampled_from([1.0, 1.0, 30.0, 500.0]))
    yield call(draw(draws.tensors(shape, scale=scale)), dim)


@logsumexp.edge
def _():
    yield call(torch.tensor([[-INF, -INF], [0.0, -INF]])), "a row of -inf: all keys are masked"
    yield call(torch.tensor([[INF, 1.0], [INF, -INF]])), "+inf"
    yield call(torch.tensor([[NAN, 1.0], [2.0, 1.0]])), "NaN"
    yield call(torch.zeros(3, 0)), "nothing to add up"
    yield call(torch.zeros(3, 0).double()), "nothing to add up, in float64"
    yield call(torch.zeros(0, 3), 0), "nothing to add up along the first axis"
    yield call(torch.tensor([[NAN, INF], [INF, NAN]])), "NaN beside +inf"
    yield call(torch.zeros(0, 3)), "no rows"
    yield call(torch.full((3,), -200.0)), "all exponentials are 0 in float32"
    yield call(torch.tensor([7.0])), "one number"
    yield call(torch.tensor([[900.0, 1.0], [-900.0, 2.0]])), "rows of very different size"
    yield call(torch.tensor([11.0, 12.0]).half()), "float16: exp(12) is above 65504"
    yield call(torch.tensor([800.0, 801.0]).double()), "float64"
    yield call(draws.scattered(torch.linspace(-9.0, 9.0, 6).view(2, 3)), 0), "not contiguous"


logsumexp.contract(
    contracts.constant_kernels(
        [call(torch.zeros(4, 3), 1), call(torch.zeros(64, 256), 1)], ALL_AT_ONCE
    )
)
OF_ALL = replace(".amax(dim, keepdim=True)", ".amax().expand(x.sum(dim, keepdim=True).shape)")
LARGEST_OF_ALL = (
    "You subtract the largest of the whole tensor. In a row far below it every exponential is 0: take the "
    "largest along `dim`."
)
logsumexp.slips(
    {
        replace(
            "(x - largest).exp().sum(dim).log() + largest.squeeze(dim)", "x.exp().sum(dim).log()"
        ): "You "
        "take exp of x as it is: above 88.7 it is infinite in float32, and below -104 it is 0.",
        replace(" + largest.squeeze(dim)", ""): "You subtract the largest and never add it again.",
        replace(
            "    largest = largest.masked_fill(largest.isinf(), 0.0)\n", ""
        ): "Where the largest is infinite you compute inf - inf, which is NaN. Subtract 0 there.",
        replace(
            "largest.isinf()", 'largest == float("inf")'
        ): "A row of -inf gives -inf - (-inf), which is NaN. Subtract 0 there, too.",
        replace(
            "largest.isinf()", 'largest == -float("inf")'
        ): "Where the largest is +inf, inf - inf is NaN. Subtract 0 there, too.",
        OF_ALL: LARGEST_OF_ALL,
        replace("if x.size(dim) == 0", "if x.numel() == 0") + OF_ALL: LARGEST_OF_ALL,
        replace(
            *("if x.size(dim) == 0", "if x.numel() == 0"),
            *("largest.isinf()", "~largest.isfinite()"),
        )
        + OF_ALL: LARGEST_OF_ALL,
        replace(
            ".amax(dim, keepdim=True)", ".mean(dim, keepdim=True)"
        ): "You subtract the mean. One number far above it still overflows: subtract the largest.",
        replace(
            ".amax(dim, keepdim=True)", ".amin(dim, keepdim=True)"
        ): "You subtract the smallest. The largest still overflows: that one has to become 0.",
        replace(
            ".amax(dim, keepdim=True)", ".amax(dim, keepdim=True).clamp(min=0.0)"
        ): "You never subtract less than 0. Where all numbers are far below 0, every exponential is 0 and your "
        "result -inf: subtract the largest, whatever its sign.",
        replace(".amax(dim, keepdim=True)", ".abs().amax(dim, keepdim=True)"): "You subtract the "
        "largest |x|. Where all are very negative, nothing but zeros is left after exp.",
        replace(
            "+ largest.squeeze(dim)",
            "+ largest.squeeze(dim) + (x.amax(dim) - x.detach().amax(dim)).nan_to_num(0.0)",
        ): "You detach the largest where you subtract it, but not where you add it again, so its gradient of "
        "1 stays. Detach it in both places, or in none.",
        replace(
            "x.detach()", "x", "+ largest.squeeze", "+ largest.detach().squeeze"
        ): "You detach the largest where you add it, but not where you subtract it, so its gradient of -1 "
        "stays. Detach it in both places, or in none.",
        replace(
            "return x.sum(dim).log()", "return torch.full(x.sum(dim).shape, -float('inf'))"
        ): "Where there is nothing to add up your -inf is float32, torch's default. The result has the dtype of "
        "x.",
        replace(
            "x.size(dim) == 0", "x.size(-1) == 0"
        ): "You ask whether the last axis is empty. The sum goes along `dim`: that one's length counts.",
        replace(
            "return (x - largest)",
            "total = (x - largest)",
            "+ largest.squeeze(dim)",
            "+ largest.squeeze(dim)\n    return total.where((x != float('inf')).all(dim), float('inf'))",
        ): "You give +inf wherever one number is +inf, also beside a NaN. The result is NaN where one is NaN.",
        replace("exp().sum(dim).log()", "exp().mean(dim).log()"): "You take the mean of the "
        "exponentials. Their sum was asked for: yours is smaller by the log of their number.",
        replace(
            "    if x.size(dim) == 0:\n        return x.sum(dim).log()\n", ""
        ): "Where there is "
        "nothing to add up, the largest does not exist and amax raises. The log of an empty sum is -inf.",
        replace("x.detach()", "x", "(x - largest).exp()", "(x - largest).detach().exp()"): "Your "
        "values are right, and their gradient is not: it must flow through exp and log.",
        replace(
            "exp().sum(dim).log()", "float().exp().sum(dim).log()"
        ): "You take exponentials in float32 and leave the result in it, where x is float16. The result "
        "has the dtype of x.",
        replace(
            "if x.size(dim) == 0", "x = x.float()\n    if x.size(dim) == 0"
        ): "Your result is float32 for every x. It has the dtype of x.",
    }
)
logsumexp.mistake(
    "Your values are right, but you go row by row in Python. `sum` and `amax` take all rows at once.",
    replace(
        "x.detach().amax(dim, keepdim=True)",
        "torch.stack([row.max() for row in x.detach().movedim(dim, -1).reshape(-1, x.size(dim))] or [x.sum()])"
        ".view(x.sum(dim, keepdim=True).shape) if x.numel() else x.sum(dim, keepdim=True)",
    ),
    cost=True,
)


logsumexp.mistake(
    "x - log_softmax(x) is the log-sum-exp once for every element of x. One number for each row was asked "
    "for, and where x is -inf the difference is NaN."
)(lambda x, dim=-1: x - torch.log_softmax(x, dim))


@logsumexp.alternative("torch's own")
def _(x, dim=-1):
    return torch.logsumexp(x, dim=dim)


@logsumexp.alternative("in float64, cast back")
def _(x, dim=-1):
    if not x.shape[dim]:
        return torch.full_like(x.sum(dim), -INF)
    wide = x.double()
    top = wide.max(dim, keepdim=True).values.detach()
    top = torch.where(top.abs() == INF, 0.0, top)
    return (top + torch.log(torch.exp(wide - top).sum(dim, keepdim=True))).squeeze(dim).to(x.dtype)


logsumexp.equivalent(
    "logsumexp: `x.detach()` → `x`",
    because="the result does not depend on the shift, so what flows back through it cancels",
)
logsumexp.equivalent(
    "logsumexp: `largest.masked_fill(largest.isinf(), 0.0)` → `largest.masked_fill(largest.isinf(), 1.0)`",
    because="where the largest is infinite, any finite shift gives the same infinity",
)


# ----------------------------------------------------------------------------------- quantize_e4m3

quantize_e4m3 = Exercise(
    nf.quantize_e4m3,
    title="Round to FP8 without FP8",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.exact_without_fp8,
    hints=(
        "With the step at x at hand, rounding to a multiple of it is `(x / step).round() * step`.",
        "`torch.frexp(x).exponent - 1` is the k of 2^k ≤ |x| < 2^(k+1). The step there is 2^(k - 3).",
        "Below 2^-6 the step stays at 2^-9: clamp k from below. torch.round takes ties to even.",
        ("edge cases", "Clamp to ±448 first, so that nothing rounds up to 480."),
    ),
)


@quantize_e4m3.by_hand
def _():
    yield call(torch.tensor([1.0, 1.1, 300.0])), [1.0, 1.125, 288.0]
    # 1.0625 lies halfway between 1 and 1.125, 1.1875 between 1.125 and 1.25: ties go to even
    yield call(torch.tensor([1.0625, 1.1875])), [1.0, 1.25]
    yield call(torch.tensor([1000.0, -460.0])), [448.0, -448.0]
    yield call(torch.tensor([0.003, 0.0009])), [2 * 2.0**-9, 0.0]


@quantize_e4m3.cases
def _(draw):
    shape = draw(draws.shapes(max_dims=2, among=(1, 2, 3), min_dims=1))
    yield call(draw(draws.tensors(shape, scale=2.0 ** draw(st.integers(-9, 8)))))


@quantize_e4m3.cases(16)
def _(draw):
    halves = draw(st.lists(st.integers(16, 31), min_size=1, max_size=4))
    k = draw(st.integers(-10, 7))
    yield call(torch.tensor([n / 16 * 2.0**k for n in halves]))


@quantize_e4m3.edge
def _():
    yield call(torch.tensor([INF, -INF, 3e38])), "infinities saturate"
    yield call(torch.tensor([NAN, 1.0])), "NaN"
    yield call(torch.tensor([0.0, -0.0])), "zero"
    yield call(torch.tensor([448.0, 464.0, 465.0, 479.0])), "at the end of the range"
    yield call(torch.tensor([2.0**-10, 2.0**-10 * 1.01, 3 * 2.0**-10])), "half the smallest step"
    yield (
        call(torch.tensor([2.0**-6, 2.0**-6 * 0.99, 2.0**-7])),
        "around the smallest normal number",
    )
    yield call(torch.tensor([1e-40])), "a subnormal float32"
    yield call(torch.tensor([-1.0625, -1.1875])), "negative ties, to even"
    yield call(torch.tensor(3.3)), "no axes"
    yield call(torch.zeros(0, 2)), "no elements"
    yield call(draws.scattered(torch.linspace(-3.0, 3.0, 6).view(2, 3))), "not contiguous"


quantize_e4m3.contract(contracts.constant_kernels([call(x) for x in LOOPED], ALL_AT_ONCE))
quantize_e4m3.slips(
    {
        replace(
            ".clamp(min=-6)", ""
        ): "Your step goes on falling below 2^-6. The subnormal numbers of "
        "E4M3 are multiples of 2^-9.",
        replace(
            "min=-6", "min=-9"
        ): "You clamp the exponent at -9. That is the exponent of the smallest "
        "step; the smallest normal number has -6, and the step 2^(-6 - 3).",
        replace(
            "min=-6", "min=-7"
        ): "Your smallest exponent is -7. It is 1 - bias: -6. frexp's is one more than the k of 2^k: take the 1 "
        "off before you clamp.",
        replace(
            "    x = x.clamp(-448.0, 448.0)\n", ""
        ): "You do not clamp. E4M3 ends at 448, and an infinity has no step.",
        replace(
            "clamp(-448.0, 448.0)", "clamp(-480.0, 480.0)"
        ): "You let numbers up to 480 through. "
        "That pattern, all ones, is NaN in E4M3: its largest number is 448.",
        replace(
            "clamp(-448.0, 448.0)", "clamp(-240.0, 240.0)"
        ): "240 is where E4M3 would end if its top "
        "exponent were kept for infinities. torch.float8_e4m3fn reaches 448.",
        replace("clamp(-448.0, 448.0)", "clamp(max=448.0)"): "You clamp from above only. Negative "
        "numbers saturate at -448.",
        replace(".round()", ".trunc()"): "You round towards zero. To nearest was asked for.",
        replace(
            "(x / step).round()", "(x / step + 0.5).floor()"
        ): "You round ties up. torch.round takes them to even.",
        replace(
            "(x / step).round()", "((x / step).abs() + 0.5).floor().copysign(x)"
        ): "You round ties away from zero. torch.round takes them to even.",
        replace(
            "(x / step).round() * step", "x.to(torch.float8_e4m3fn).float()"
        ): "Your values are right, but a cast to FP8 has rounded them. Round by multiples of the step, "
        "without one.",
        replace(
            "x = x.clamp(-448.0, 448.0)", "x = x.nan_to_num(0.0).clamp(-448.0, 448.0)"
        ): "You turn a NaN into 0, as nan_to_num does. A NaN stays NaN.",
        replace("- 3)", "- 2)"): "Your steps are twice too large: E4M3 has 3 mantissa bits.",
        replace(".exponent - 1", ".exponent"): "Your steps are twice too large: the fraction of "
        "torch.frexp lies in [0.5, 1), so its exponent is one more than the one you need.",
        replace(
            "(x / step).round() * step", "((x / step).round() * step).to(torch.float8_e4m3fn)"
        ): "Your numbers are right, but of dtype float8_e4m3fn. float32 was asked for.",
    }
)
quantize_e4m3.mistake(
    "Your values are right, but you go through the elements in Python. frexp, exp2 and round take them "
    "all at once.",
    replace(
        "torch.frexp(x).exponent - 1",
        "torch.tensor([torch.frexp(v).exponent.item() - 1 for v in x.flatten()]).long().view(x.shape)",
    ),
    cost=True,
)


quantize_e4m3.mistake(
    "0 has no logarithm: your step there is 0, and 0 / 0 is NaN. Clamp the exponent at -6, which subnormal "
    "numbers need as well.",
    replace(
        "torch.frexp(x).exponent - 1",
        "x.abs().log2().floor()",
        "exponent.clamp(min=-6)",
        "exponent",
    ),
)


@quantize_e4m3.alternative("by its bits, and multiples of 2^-9 below 2^-6")
def _(x):
    x = torch.clip(x, -448, 448)
    bits = x.contiguous().view(torch.int32)
    cut = (bits + 0x7FFFF + (bits >> 20 & 1)) & -(1 << 20)
    return torch.where(x.abs() < 2.0**-6, (x * 512).round() / 512, cut.view(torch.float32))


@quantize_e4m3.alternative("the nearest of a table of all numbers")
def _(x):
    table = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    size = x.abs().clamp(max=448.0)
    high = torch.searchsorted(table, size.contiguous()).clamp(max=126)
    low = (high - 1).clamp(min=0)
    up, down = table[high] - size, size - table[low]
    pick = torch.where((up < down) | ((up == down) & (high % 2 == 0)), high, low)
    return (table[pick] * x.sign()).where(~x.isnan(), x)


# ---------------------------------------------------------------------------------- quantize_mxfp8

quantize_mxfp8 = Exercise(
    nf.quantize_mxfp8,
    title="Blocks that share a scale",
    difficulty=3,
    minutes=40,
    points=5,
    hints=(
        "`x.unflatten(-1, (-1, 32))` makes a row of each block. What is the largest |x| of each?",
        "`torch.frexp(largest).exponent - 1` is floor(log2(largest)). Take 8 away: then the largest element lies in [256, 512), the top of E4M3.",
        "Divide each block by 2^e, clamp to ±448, cast to torch.float8_e4m3fn and look at the bytes: `.view(torch.uint8)`.",
        (
            "edge cases",
            "What does frexp say of 0? And e has a smallest value, -127.",
        ),
    ),
)


def codes(*values):
    return torch.tensor(values, dtype=torch.uint8)


ONES = codes(*[0x78] * 32)  # 256 in E4M3
quantize_mxfp8.by_hand(
    lambda: [
        # largest 1: e = 0 - 8, so each element is 1 · 2^8 = 256, and the scale's byte is 119
        (call(torch.ones(32)), (ONES, codes(119))),
        # largest 1.9: e = -8, 1.9 · 256 = 486 saturates at 448, and 1 stays 256
        (
            call(torch.tensor([1.9] + [1.0] * 31)),
            (torch.cat([codes(0x7E), ONES[1:]]), codes(119)),
        ),
        (call(torch.zeros(32)), (torch.zeros(32, dtype=torch.uint8), codes(0))),
    ]
)


@quantize_mxfp8.cases(24)
def _(draw):
    batch = draw(draws.shapes(max_dims=2, among=(1, 2), min_dims=0))
    blocks = draw(st.integers(1, 3))
    x = draw(draws.tensors((*batch, blocks, 32), scale=2.0 ** draw(st.integers(-30, 30))))
    apart = 2.0 ** torch.arange(0, 4 * blocks, 4).view(blocks, 1)
    yield call((x * apart).flatten(-2))


@quantize_mxfp8.edge
def _():
    ramp = torch.linspace(-3.0, 3.0, 64)
    yield call(torch.cat([torch.zeros(32), ramp[:32]])), "a block of zeros beside another"
    yield call(-torch.zeros(32)), "minus zeros keep their sign"
    yield call(torch.cat([-8.0 * torch.ones(1), ramp[:31] / 8])), "the largest is negative"
    yield call(torch.full((32,), 3e38)), "close to the end of float32"
    yield call(torch.full((32,), 1e-44)), "subnormal float32: the smallest scale is 2^-127"
    yield call(torch.full((32,), 2.0**-118)), "e is just above its smallest"
    yield call(torch.tensor([1e30] + [1.0] * 31)), "one number pushes all others to zero"
    yield call(torch.tensor([1e30] + [-1.0] * 31)), "and, where they are negative, to minus zero"
    yield call(torch.full((32,), 2.0**29)), "a power of two whose logarithm must not be rounded"
    yield call(torch.tensor([2.0 - 2.0**-23] * 32)), "just below a power of two"
    for k in (10, -20, 100):
        close = torch.nextafter(torch.tensor(2.0**k), torch.tensor(0.0))
        yield call(close.repeat(32)), f"so close below 2^{k} that log2 in float32 rounds to {k}"
    yield call(torch.full((32,), 1.45)), "below 1.5, above the square root of 2: e is that of 1"
    yield call(torch.zeros(0, 32)), "no rows"
    yield call(torch.zeros(2, 0)), "no blocks"
    yield call(torch.ones(33)), "no multiple of 32"
    yield call(torch.zeros(0, 33)), "no rows, and no multiple of 32"
    yield call(torch.ones(2, 16)), "32 numbers in all, but not along the last axis"
    yield call(ramp.view(32, 2).T.contiguous()), "two rows"
    yield call(draws.scattered(torch.stack([ramp, 100 * ramp]))), "not contiguous"


quantize_mxfp8.contract(
    contracts.constant_kernels(
        [call(torch.ones(2, 64)), call(torch.linspace(1, 2, 2048).view(4, 512))], ALL_AT_ONCE
    )
)
quantize_mxfp8.slips(
    {
        replace(
            "exponent - 1 - 8", "exponent - 1"
        ): "Your scale takes the largest element to [1, 2). "
        "E4M3 reaches 448: take its largest exponent, 8, away, and use the upper half of its range.",
        replace(
            "exponent - 1 - 8", "exponent - 8"
        ): "Your scales are twice too large: frexp's fraction "
        "lies in [0.5, 1), so floor(log2) is its exponent - 1. (Or you took away 7, E4M3's bias, for 8, its "
        "largest exponent.)",
        replace(
            "exponent - 1 - 8", "exponent - 1 - 15"
        ): "15 is the largest exponent of E5M2. E4M3's is 8.",
        replace(
            "(exponent + 127)", "exponent"
        ): "You store e itself. E8M0 stores e + 127, which is never negative.",
        replace(
            "blocks.abs().amax(-1)", "blocks.abs().amax().expand(blocks.shape[:-1])"
        ): "You take one scale for the whole tensor. Each block of 32 has its own.",
        replace(
            "blocks.abs().amax(-1)", "blocks.amax(-1).abs()"
        ): "You take the largest number, not the largest |x|: a block's largest may be negative.",
        replace(
            "blocks.abs().amax(-1)", "blocks.amax(-1).clamp(min=0.0)"
        ): "You leave out abs: negative numbers do not count for your scale, and a block of nothing else "
        "gets the smallest. It follows from the largest |x|.",
        replace(
            ".clamp(-448.0, 448.0)", ".clamp(-256.0, 256.0)"
        ): "You clamp to ±256. The elements reach up to 448.",
        replace(
            "    elements =",
            "    scaled = scaled.where((scaled.abs() >= 2.0**-10) | (scaled == 0), 0.0)\n    elements =",
        ): "A small negative number that rounds to zero loses its sign. A cast makes minus zero of it, 0x80, and "
        "that sign is kept.",
        replace(
            "exp2(-exponent)", "exp2(exponent)"
        ): "You multiply by the scale. The elements are x / scale.",
        replace(
            "    if x.size(-1) % MX_BLOCK:\n"
            '        raise ValueError(f"{x.size(-1)} numbers do not fall into blocks of {MX_BLOCK}")\n',
            "",
        ): "torch raises RuntimeError where the last axis does not split. Say so yourself, with "
        "ValueError.",
        replace(
            "    if x.size(-1) %",
            "    if not x.numel():\n        return x.to(torch.uint8), x[..., 31::32].to(torch.uint8)\n"
            "    if x.size(-1) %",
        ): "You answer for an x without elements before you look at n. ValueError is due there, too, where it is no "
        "multiple of 32.",
        replace(
            "if x.size(-1) % MX_BLOCK", "if x.numel() % MX_BLOCK"
        ): "You count all the numbers. Blocks lie along the last axis: ValueError is due where that one's "
        "length is no multiple of 32.",
        replace(
            ".masked_fill(largest == 0, -127)", ""
        ): "frexp of 0 has exponent 0, so your block of "
        "zeros gets the scale 2^-9. It has the smallest, 2^-127.",
        replace(
            ".clamp(min=-127)", ""
        ): "Below 2^-127 there is no scale: your byte wraps around. Keep e at -127 or above.",
        replace(
            ".clamp(min=-127)", "", "(exponent + 127)", "(exponent.clamp(min=-127) + 127)"
        ): "You keep e at -127 or above in the scale's byte alone, and divide the elements by a smaller scale. Divide "
        "by the one that is stored.",
        replace(
            "blocks = x.unflatten(-1, (-1, MX_BLOCK))",
            "blocks = x.unflatten(-1, (MX_BLOCK, -1)).transpose(-1, -2)",
            "elements.flatten(-2)",
            "elements.transpose(-1, -2).flatten(-2)",
        ): "Your blocks are numbers far apart. A block is 32 neighbours.",
        replace(
            "elements.flatten(-2).view(torch.uint8), (exponent + 127).to(torch.uint8)",
            "(exponent + 127).to(torch.uint8), elements.flatten(-2).view(torch.uint8)",
        ): "The bytes of the elements come first, then those of the scales.",
        replace(
            "elements.flatten(-2).view(torch.uint8)", "elements.flatten(-2)"
        ): "Your elements are right, "
        "as float8_e4m3fn. Their bytes were asked for: .view(torch.uint8).",
        replace(
            "exponent = torch.frexp(largest).exponent - 1 - 8",
            "exponent = largest.log2().ceil().nan_to_num(0.0, 0.0, 0.0).int() - 8",
        ): "You "
        "round log2 up, so that nothing saturates. Rounding down was asked for; what lies above 448 "
        "is clamped.",
        replace(
            "torch.frexp(largest).exponent - 1 - 8",
            "largest.log2().floor().clamp(min=-200.0).int() - 8",
        ): "log2 in float32 rounds: just below a power of two it gives a whole number, and your scale is "
        "twice too large. torch.frexp gives the exponent exactly.",
        replace(
            "torch.frexp(largest).exponent - 1 - 8",
            "(largest / 256).clamp(min=2.0**-127).to(torch.float8_e8m0fnu).view(torch.uint8).int() - 127",
        ): "Your scale is rounded to the nearest power of two, as a cast to float8_e8m0fnu does. Where "
        "the largest is 1.5 times a power of two or more, it is twice too large: round down.",
        replace(
            "torch.frexp(largest).exponent - 1 - 8",
            "largest.log2().round().clamp(min=-200.0).int() - 8",
        ): "You round log2 to the nearest integer. Rounding down was asked for.",
    }
)
quantize_mxfp8.mistake(
    "You choose the scale by the largest number, 448, instead of by its exponent. Where a block's largest "
    "is below 1.75 times a power of two, yours is half of what the specification gives.",
    replace(
        "torch.frexp(largest).exponent - 1 - 8", "torch.frexp(largest.double() / 448).exponent - 1"
    ),
)
quantize_mxfp8.mistake(
    "Your values are right, but you go block by block in Python. An axis for the blocks takes them all "
    "at once.",
    replace(
        "blocks.abs().amax(-1)",
        "torch.stack([b.abs().max() for b in blocks.flatten(0, -2)] or [x.sum()])[: blocks[..., 0].numel()]"
        ".view(blocks.shape[:-1])",
    ),
    cost=True,
)


@quantize_mxfp8.alternative("the exponent field of the largest, by its bits; divided by the scale")
def _(x):
    *batch, n = x.shape
    if n % 32 != 0:
        raise ValueError(n)
    blocks = x.reshape(*batch, n // 32, 32)
    field = (blocks.abs().amax(-1).view(torch.int32) >> 23).sub(8).clamp(min=0)
    scaled = blocks.double() / torch.pow(2.0, field.double() - 127).unsqueeze(-1)
    elements = torch.clip(scaled, -448, 448).to(torch.float32).to(torch.float8_e4m3fn)
    return elements.reshape(*batch, n).view(torch.uint8), field.to(torch.uint8)


@quantize_mxfp8.alternative("log2 in float64, ldexp; a list of two")
def _(x):
    if x.shape[-1] % 32:
        raise ValueError(x.shape)
    wide = x.double().unflatten(-1, (x.shape[-1] // 32, 32))
    top = wide.abs().max(-1, keepdim=True).values if x.shape[-1] else wide[..., :1]
    e = (top.clamp(min=2.0**-119).log2() + 1e-12).floor().sub(8)
    bytes_ = (wide / 2.0**e).clamp(-448, 448).float().to(torch.float8_e4m3fn).view(torch.uint8)
    return [bytes_.flatten(-2), (e.squeeze(-1) + 127).to(torch.uint8)]


# ------------------------------------------------------------------------------------ equivalents

FLOAT32 = "x is float32, and float() returns it as it is"
SATURATES = "torch 2.13 on a CPU saturates in a cast to float8_e4m3fn; on other devices and versions it may be NaN"
for exercise in (encode_bfloat16, stochastic_round):
    exercise.equivalent(f"{exercise.names[0]}: `x.float()` → `x`", because=FLOAT32)
for mutant in (
    "scaled.clamp(-448.0, 448.0)` → `scaled",
    "-448.0` → `-896.0",
    "scaled.clamp(-448.0, 448.0)` → `scaled.clamp(-448.0, 896.0)",
):
    quantize_mxfp8.equivalent(f"quantize_mxfp8: `{mutant}`", because=SATURATES)
