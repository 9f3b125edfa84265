"""Chapter 20's meshes against torch's DeviceMesh."""

import pytest
import torch

from course_utils.reference.device_mesh import mesh_coordinates, mesh_group

SIZES = [(8,), (2, 4), (3, 1, 2), (2, 3, 2, 2)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_ranks_are_laid_out_as_in_a_tensor(sizes):
    table = torch.arange(torch.Size(sizes).numel()).view(sizes)
    for rank in table.flatten().tolist():
        coordinates = mesh_coordinates(rank, sizes)
        assert table[coordinates] == rank
        for axis in range(-len(sizes), len(sizes)):
            along = list(coordinates)
            along[axis] = slice(None)
            assert mesh_group(rank, sizes, axis) == table[tuple(along)].tolist()


def test_what_is_not_there_raises():
    for rank in (-1, 6):
        with pytest.raises(ValueError, match="no rank"):
            mesh_coordinates(rank, (2, 3))
    with pytest.raises(IndexError):
        mesh_group(0, (2, 3), 2)
