"""Predictions and the quiz of chapter 15."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

naive = Prediction(
    "A launch takes 5 µs of the host's time, the kernel that it starts 20,000 µs of the device's. A program reads "
    "the clock, launches one kernel, and reads the clock again. How many microseconds does it see, in whole numbers?",
    setup="""
from course_utils.meters import SimulatedDevice
def seen(waits, before=0):
    device = SimulatedDevice(launch_s=5e-6)
    for _ in range(before):
        device.launch(20e-3)
    start = device.clock()
    device.launch(20e-3)
    if waits:
        device.synchronize()
    return round(1e6 * (device.clock() - start))
""",
    asks=[
        Ask(
            "as it stands",
            truth="seen(False)",
            why="The launch returns at once. That is all that was timed.",
        ),
        Ask(
            "if it waits for the device before it reads the clock again",
            truth="seen(True)",
            why="The launch, and then the kernel: the kernel starts when the launch is done.",
        ),
        Ask(
            "if it waits so, and another such kernel was launched just before the first reading",
            truth="seen(True, before=1)",
            why="That kernel has 20,000 µs before it, ours comes after. 5 µs of the launch are hidden behind it.",
        ),
    ],
)

bound = Prediction(
    "A step launches 100 kernels, one after the other. A launch takes 5 µs. How many microseconds does the step take, "
    "from the first launch until the device is done?",
    setup="""
from course_utils.meters import SimulatedDevice
def step(kernel, graph=False):
    device = SimulatedDevice(launch_s=5e-6)
    if graph:
        device.launch_graph([("kernel", kernel * 1e-6)] * 100)
    else:
        for _ in range(100):
            device.launch(kernel * 1e-6)
    device.synchronize()
    return round(1e6 * device.clock())
""",
    asks=[
        Ask(
            "each kernel takes 3 µs",
            truth="step(3)",
            why="Launches set the pace: 100 · 5 µs, and the last kernel's 3. The device idles 2 of each 5 µs.",
        ),
        Ask(
            "each kernel takes 50 µs",
            truth="step(50)",
            why="The kernels set the pace: 100 · 50 µs, after the first launch.",
        ),
        Ask(
            "each takes 3 µs, and all are launched at once, as one CUDA graph",
            truth="step(3, graph=True)",
            why="One launch, and then 100 · 3 µs without a gap.",
        ),
    ],
)

lengths = Prediction(
    "A compiled function is called with one tensor after the other, of these lengths. How often is it compiled in all?",
    setup="from course_utils.reference.profiling_and_compile import recompiles\n"
    "def times(*lengths, **options):\n"
    "    return sum(recompiles([(n,) for n in lengths], **options))",
    asks=[
        Ask(
            "128, 128, 128",
            truth="times(128, 128, 128)",
            why="Once; the others pass its guards.",
        ),
        Ask(
            "128, 256, 512, 77",
            truth="times(128, 256, 512, 77)",
            why="For 128, and again for 256, now for any length: 512 and 77 pass.",
        ),
        Ask(
            "128, 256, 1, 77",
            truth="times(128, 256, 1, 77)",
            why="A length of 1 is never dynamic: it is compiled for itself.",
        ),
        Ask(
            "128, 256, 512, 77 with dynamic=False",
            truth="times(128, 256, 512, 77, dynamic=False)",
            why="One compilation for each length.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A trace of one training step shows 900 short kernels with gaps between them that are longer than the "
            "kernels, and the host's thread is busy all the time. What helps least?",
            choices=[
                Choice(
                    "A larger batch, so that every kernel has more to do for its launch.",
                    why="It does help: kernels get longer, launches do not, and the gaps close.",
                ),
                Choice(
                    "A GPU with twice the FLOP/s and twice the bandwidth of this one.",
                    right=True,
                    why="The kernels would be shorter and the gaps longer. The host sets the pace: the step is launch-bound.",
                ),
                Choice(
                    'torch.compile with mode="reduce-overhead", which fuses and uses CUDA graphs.',
                    why="It does help: fewer kernels, and one launch for many of them.",
                ),
            ],
        ),
        Question(
            "Somebody times a compiled model: 50 calls in a loop, the clock before and after, torch.cuda.synchronize() "
            "after the loop, the total divided by 50. What is wrong with the number?",
            choices=[
                Choice(
                    "Nothing of importance: it waits before the clock is read, and 50 calls are plenty for a mean.",
                    why="The first call compiles, which may take longer than all others together.",
                ),
                Choice(
                    "Each call should be followed by a synchronize, or the device runs several calls at once.",
                    why="Calls on one stream run one after the other. Waiting for each would add the launches' delay.",
                ),
                Choice(
                    "The first call, which compiles, is counted, and one mean hides that it was another kind of call.",
                    right=True,
                    why="Warm up first. Times of single calls would have shown it at once.",
                ),
            ],
        ),
        Question(
            "GELU written out as eight pointwise operations on a large tensor is compiled into one kernel. Why is it "
            "several times as fast on a GPU?",
            choices=[
                Choice(
                    "It computes fewer FLOPs: the compiler simplifies the formula before it writes code.",
                    why="The FLOPs are nearly the same. They were never what took the time.",
                ),
                Choice(
                    "The tensor is read once and written once; what lies between stays in registers.",
                    right=True,
                    why="Such operations are memory-bound, so the time follows the bytes.",
                ),
                Choice(
                    "Eight kernels run at the same time, each of them on another part of the device.",
                    why="It is one kernel; and each of the eight needs the result of the one before.",
                ),
            ],
        ),
        Question(
            "A compiled function takes a tensor x and an `nn.Module` that counts its own calls in `self.calls += 1`, and "
            "uses the count. What does Dynamo do?",
            choices=[
                Choice(
                    "It compiles for the first count, and gives wrong results from the second call on.",
                    why="The guard on the attribute sees the change. Guards are there so that this cannot happen.",
                ),
                Choice(
                    "It makes the count a dynamic number in the second compilation, as with a length.",
                    why="That is so for arguments. An integer attribute of a module stays a constant by default.",
                ),
                Choice(
                    "It compiles anew in every call, up to the limit, and then runs the function uncompiled.",
                    right=True,
                    why="Eight compilations, a warning, and no speed. Keep such a number in a tensor, or out of the graph.",
                ),
            ],
        ),
        Question(
            "A Triton kernel gives the right result under the interpreter, for odd sizes too. What is *not* shown by that?",
            choices=[
                Choice(
                    "That its masks on stores are right where a block reaches beyond the tensor.",
                    why="That is shown, if the memory behind the tensor is looked at: the interpreter runs every program.",
                ),
                Choice(
                    "That it reads nothing outside of its tensors, and that it is fast.",
                    right=True,
                    why="A stray read has no effect if what it read is thrown away; and the interpreter runs in NumPy.",
                ),
                Choice(
                    "That every program of the grid finds its own rows by its index.",
                    why="That is shown: programs run one after the other, each with its own index.",
                ),
            ],
        ),
    ]
)
