"""Predictions and the quiz of chapter 16."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

who = Prediction(
    "Three nodes with eight GPUs each, one process for each GPU, started by torchrun.",
    setup=(
        "from course_utils.reference.process_groups import rank_of\n"
        "job = (8, 8, 8)\n"
        "where = {rank_of(n, l, job): (n, l) for n in range(3) for l in range(8)}"
    ),
    code="# on every node: torchrun --nnodes=3 --nproc-per-node=8 … train.py",
    asks=[
        Ask("WORLD_SIZE", truth="len(where)", why="Every process of the job: 3 · 8."),
        Ask("LOCAL_WORLD_SIZE", truth="job[1]", why="The processes of one node."),
        Ask(
            "RANK of the last process on node 1",
            truth="rank_of(1, 7, job)",
            why="Eight processes on node 0, then local rank 7: 8 + 7.",
        ),
        Ask(
            "node and LOCAL_RANK of rank 17",
            truth="where[17]",
            why="17 = 2 · 8 + 1: node 2, local rank 1. It takes the second GPU there.",
        ),
    ],
)

orders = Prediction(
    "Which of these programs finish? A `send` waits until its receiver has begun to receive, as in gloo.",
    setup=(
        "def finishes(*programs):\n"
        "    at = [0] * len(programs)\n"
        "    moved = True\n"
        "    while moved:\n"
        "        moved = False\n"
        "        for r, program in enumerate(programs):\n"
        "            if at[r] == len(program) or program[at[r]][0] != 's':\n"
        "                continue\n"
        "            to = int(program[at[r]][1])\n"
        "            if at[to] < len(programs[to]) and programs[to][at[to]] == f'r{r}':\n"
        "                at[r] += 1\n"
        "                at[to] += 1\n"
        "                moved = True\n"
        "    return all(a == len(p) for a, p in zip(at, programs))"
    ),
    code="# s1: send to rank 1, r1: receive from rank 1; each rank runs its own list from left to right",
    asks=[
        Ask(
            "rank 0: s1 r1 · rank 1: s0 r0",
            truth="finishes(['s1', 'r1'], ['s0', 'r0'])",
            why="Both send first, and each waits for the other to receive.",
        ),
        Ask(
            "rank 0: s1 r1 · rank 1: r0 s0",
            truth="finishes(['s1', 'r1'], ['r0', 's0'])",
            why="The first send meets a receive, then the second does.",
        ),
        Ask(
            "a ring of three, all send first: s1 r2 · s2 r0 · s0 r1",
            truth="finishes(['s1', 'r2'], ['s2', 'r0'], ['s0', 'r1'])",
            why="Everyone waits for its right neighbour, in a circle.",
        ),
        Ask(
            "the same, but rank 2 receives first: s1 r2 · s2 r0 · r1 s0",
            truth="finishes(['s1', 'r2'], ['s2', 'r0'], ['r1', 's0'])",
            why="One rank that breaks the circle is enough. But the messages now go one after the other.",
        ),
    ],
)

collectives = Prediction(
    "Four ranks; rank r begins with x = [10(r + 1) + 1, …, 10(r + 1) + 4]. What is on rank 2 afterwards?",
    setup=(
        "xs = [[10 * (r + 1) + j for j in range(1, 5)] for r in range(4)]\n"
        "sums = [sum(column) for column in zip(*xs)]"
    ),
    code="# rank 0: [11, 12, 13, 14]   rank 1: [21, 22, 23, 24]   rank 2: [31, 32, 33, 34]   rank 3: [41, 42, 43, 44]",
    asks=[
        Ask(
            "broadcast from rank 1: x[0]",
            truth="xs[1][0]",
            why="Everybody has rank 1's tensor.",
        ),
        Ask("all_reduce (sum): x[0]", truth="sums[0]", why="11 + 21 + 31 + 41."),
        Ask(
            "reduce_scatter (sum): the one number it gets",
            truth="sums[2]",
            why="Rank 2 gets element 2 of the sum: 13 + 23 + 33 + 43.",
        ),
        Ask(
            "all_to_all: its four numbers",
            truth="tuple(x[2] for x in xs)",
            why="Element 2 of everybody: a transpose of the table whose rows are the ranks.",
        ),
        Ask(
            "all_gather of x[:1]: its four numbers",
            truth="tuple(x[0] for x in xs)",
            why="The first element of everybody, in the order of the ranks.",
        ),
    ],
)

tree = Prediction(
    "A broadcast by a binomial tree: in each round, whoever has the tensor sends it to one who has not.",
    setup="from math import ceil, log2",
    code="# the alternative: the root sends to one rank after the other",
    asks=[
        Ask("rounds for 8 ranks", truth="ceil(log2(8))", why="1 → 2 → 4 → 8."),
        Ask("rounds for 9 ranks", truth="ceil(log2(9))", why="After three rounds one is missing."),
        Ask(
            "messages in all, 8 ranks",
            truth="7",
            why="Every rank but the root receives once. A tree saves no messages; it sends them at once.",
        ),
        Ask(
            "rounds for 1,024 ranks",
            truth="ceil(log2(1024))",
            why="Where the root alone would need 1,023.",
        ),
    ],
)

ring_bytes = Prediction(
    "A ring all-reduce of 1,200 MB on every rank.",
    setup="def sent(n, mb=1200):\n    return 2 * (n - 1) * mb // n",
    code="# n ranks, 2(n − 1) steps, 1,200/n MB a step",
    asks=[
        Ask("MB that each rank sends, n = 2", truth="sent(2)", why="Half the tensor, twice."),
        Ask("n = 4", truth="sent(4)", why="2 · 3/4 of 1,200."),
        Ask("n = 100", truth="sent(100)", why="2 · 99/100 of 1,200: never more than 2 · 1,200."),
        Ask(
            "steps, n = 100", truth="2 * (100 - 1)", why="And each step costs α: here is the price."
        ),
    ],
)

bandwidths = Prediction(
    "An all-reduce of 8 GB takes 40 ms on 8 GPUs.",
    setup=(
        "from course_utils.reference.process_groups import bus_bandwidth\n"
        "bus = bus_bandwidth('all_reduce', 8_000, 0.04, 8) / 1000"
    ),
    code="# algorithm bandwidth: bytes of the tensor / seconds. Bus bandwidth: bytes over a link / seconds.",
    asks=[
        Ask("algorithm bandwidth, GB/s", truth="round(8 / 0.04)", why="8 GB in 0.04 s."),
        Ask(
            "bus bandwidth, GB/s",
            truth="round(bus)",
            why="200 · 2 · 7/8. Compare this with the link.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "`if rank == 0: dist.all_reduce(loss); print(loss)` hangs. Why?",
            choices=[
                Choice(
                    "`print` reads the loss before the sum is complete, and the two block each other.",
                    why="The call returns when the sum is there, and printing communicates with nobody. On rank 0 it is the custom.",
                ),
                Choice(
                    "The other ranks never call this all-reduce, and rank 0 waits for them.",
                    right=True,
                    why="A collective is a call of every rank in the group. Take it out of the `if`, and leave the print in it.",
                ),
                Choice(
                    "The loss needs `detach()` first.",
                    why="Then the others would still not have called.",
                ),
            ],
        ),
        Question(
            "A tensor of 4 bytes is to be summed over 512 ranks of one fast network. Which algorithm?",
            choices=[
                Choice(
                    "Rank 0 collects, and sends the sum to each.",
                    why="1,022 messages through one rank: as many as the ring's steps, and all in one place.",
                ),
                Choice(
                    "The ring, since it sends the fewest bytes.",
                    why="Fewest bytes, but 1,022 steps one after the other; with 4 bytes only α counts.",
                ),
                Choice(
                    "The tree, up and down again.",
                    right=True,
                    why="2 · log2 512 = 18 messages one after the other. Libraries change to the ring, or to another bandwidth-optimal algorithm, as the tensor grows.",
                ),
            ],
        ),
        Question(
            "Every rank calls `dist.send(x, right)` and then `dist.recv(y, left)`. On your laptop, with another library, it worked. Is it right?",
            choices=[
                Choice(
                    "No: a send may wait for its receiver.",
                    right=True,
                    why="Post both together: `batch_isend_irecv`, or isend before recv and a wait after. Or let one rank receive first.",
                ),
                Choice(
                    "Yes: the test has shown it.",
                    why="A library that copies small messages into a buffer lets it pass, until a message is larger than the buffer.",
                ),
                Choice(
                    "Only where the number of ranks is even.",
                    why="The circle closes for every n from 2 on. Letting the even ranks send first is a cure, though.",
                ),
            ],
        ),
        Question(
            "On 8 GPUs an all-reduce shows an algorithm bandwidth of 200 GB/s, on 16 one of 187. Has the network become slower?",
            choices=[
                Choice(
                    "Yes, by 6.5 %.",
                    why="Each GPU also sends more: 2 · 15/16 of the tensor instead of 2 · 7/8.",
                ),
                Choice(
                    "One cannot tell without the size of the tensor.",
                    why="Both bandwidths are the same size over the time: it cancels.",
                ),
                Choice(
                    "No: the bus bandwidth is about 350 GB/s in both.",
                    right=True,
                    why="200 · 2 · 7/8 = 350, and 187 · 2 · 15/16 is 350.6. That is what bus bandwidth is for.",
                ),
            ],
        ),
        Question(
            "A job hangs after three hours. Rank 5 stands in an all-reduce of 1,024 elements, all others in one of 4,096. What do you look for?",
            choices=[
                Choice(
                    "A branch that depends on the data.",
                    right=True,
                    why="Rank 5 made another sequence of calls: a batch without labels, a loss that was NaN, a parameter without a gradient. The flight recorder tells at which call they parted.",
                ),
                Choice(
                    "A broken cable, or a card that fails, at rank 5.",
                    why="It came as far as its own call: it is connected, and it does something else.",
                ),
                Choice(
                    "A longer timeout.",
                    why="They wait for different things. No time is long enough.",
                ),
            ],
        ),
    ]
)
