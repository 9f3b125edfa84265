"""Chapter 20, meshes: ranks as the places of an array, and the groups along its axes."""

from collections.abc import Sequence
from math import prod


def mesh_coordinates(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Where a rank stands in a mesh: its coordinate on each axis.

    sizes: of the axes, the outermost first, at least one of them. Ranks are laid out in
    row-major order, as torch's DeviceMesh has them: the last coordinate changes
    fastest. Raises ValueError for a rank that the mesh does not have.
    """
    if not 0 <= rank < prod(sizes):
        raise ValueError(f"a mesh of {tuple(sizes)} has no rank {rank}")
    coordinates = []
    for size in reversed(sizes):
        rank, coordinate = divmod(rank, size)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))


def mesh_group(rank: int, sizes: Sequence[int], axis: int) -> list[int]:
    """The ranks that a rank talks to along one axis of a mesh, itself among them.

    They have its coordinates on all other axes, and come in the order of their
    coordinate on this one. sizes: as in `mesh_coordinates`. axis: counted from 0, or
    from the end if negative. Raises ValueError for a rank that the mesh does not have,
    and IndexError for such an axis.
    """
    coordinate = mesh_coordinates(rank, sizes)[axis]
    stride = prod(sizes[axis % len(sizes) + 1 :])
    first = rank - coordinate * stride
    return [first + i * stride for i in range(sizes[axis])]
