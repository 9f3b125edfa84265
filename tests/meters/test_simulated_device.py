"""The device that computes while its host goes on."""

from course_utils.meters import SimulatedDevice


def test_a_launch_returns_before_the_kernel_ends() -> None:
    device = SimulatedDevice(launch_s=0.25)
    assert device.launch(4.0) == 4.25
    assert device.clock() == 0.25
    device.synchronize()
    assert device.clock() == 4.25


def test_kernels_of_a_stream_queue_up_and_streams_run_beside_each_other() -> None:
    device = SimulatedDevice(launch_s=0.0)
    device.launch(2.0, "a")
    device.launch(3.0, "b")
    device.launch(1.0, "c", stream=1)
    assert [(k.name, k.start, k.end) for k in device.kernels] == [
        ("a", 0.0, 2.0),
        ("b", 2.0, 5.0),
        ("c", 0.0, 1.0),
    ]


def test_a_kernel_waits_for_its_launch_and_for_what_its_stream_waits_for() -> None:
    device = SimulatedDevice(launch_s=0.5)
    done = device.launch(4.0)
    device.wait(1, until=done)
    device.launch(1.0, stream=1)
    assert device.kernels[-1].start == done
    device.host(100.0)
    device.launch(1.0)
    assert device.kernels[-1].start == 101.5


def test_a_graph_is_one_launch() -> None:
    device = SimulatedDevice(launch_s=0.5)
    device.launch_graph([("a", 1.0), ("b", 1.0)])
    assert device.clock() == 0.5
    assert [k.start for k in device.kernels] == [0.5, 1.5]
    launches = [e for e in device.trace() if e["cat"] == "cuda_runtime"]
    kernels = [e for e in device.trace() if e["cat"] == "kernel"]
    assert len(launches) == 1
    assert {e["args"]["correlation"] for e in kernels} == {launches[0]["args"]["correlation"]}


def test_an_annotation_is_the_hosts() -> None:
    device = SimulatedDevice(launch_s=1e-6)
    with device.annotation("forward"):
        device.launch(1.0)
    (note,) = [e for e in device.trace() if e["cat"] == "user_annotation"]
    assert (note["name"], note["ts"], round(note["dur"], 6)) == ("forward", 0.0, 1.0)
