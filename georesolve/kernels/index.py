"""The reference set as the searches want it."""

from typing import Any

from georesolve.kernels.devices import Array, Device, coordinate_pair, device_of, implementation
from georesolve.kernels.shapes import ShapeIndex
from georesolve.query import EARTHS, Earth


class ReferenceIndex:
    """References ready to be searched, on the device of their arrays.

    `vectors` are float64 unit vectors in row order, NaN where a coordinate is not valid: of shape
    (3, n_references) on a GPU, (n_references, 4) on a CPU. On the ellipsoid they are its points, in
    units of the semi-major axis. Only the device's pruned search looks into `tree`.
    """

    def __init__(self, vectors: Array, tree: Any, earth: Earth = "sphere") -> None:
        self.vectors, self.earth = vectors, earth
        self._tree = tree

    @property
    def tree(self) -> Any:
        """The tree. A GPU's is settled when it is first asked for: its build has ended by then."""
        tree = self._tree
        if callable(tree):
            # Two threads that ask at once settle it twice, to the same.
            self._tree = tree = tree()
        return tree

    def __reduce__(self) -> Any:
        return ReferenceIndex, (self.vectors, self.tree, self.earth)

    @property
    def device(self) -> Device:
        """Where the references lie, and so where they are searched."""
        return device_of(self.vectors)

    @property
    def n_references(self) -> int:
        """How many references there are, those that are not valid included."""
        return int(self.vectors.shape[1 if self.device == "cuda" else 0])

    @property
    def nbytes(self) -> int:
        """Memory that the index holds, in bytes."""
        return int(sum(getattr(array, "nbytes", 0) for array in (self.vectors, *self.tree)))

    @property
    def whole(self) -> bool:
        """Whether the tree holds every valid reference, as `within` needs."""
        return bool(implementation(self.device, "tree").whole(self.vectors, self.tree))

    def arrays(self) -> dict[str, Array]:
        """All that the index is made of, by name; `index_of` makes the same index of it again."""
        return {"vectors": self.vectors, **self.tree._asdict()}


def index_of(arrays: dict[str, Array]) -> ReferenceIndex | ShapeIndex:
    """The index whose `arrays` these are, on their device; nothing is computed."""
    if (shapes := ShapeIndex.of(arrays)) is not None:
        return shapes
    vectors, *tree = arrays.values()
    kind = implementation(device_of(vectors), "tree").Tree
    return ReferenceIndex(vectors, kind(*tree))


def build_index(
    lat_deg: Array, lon_deg: Array, *, copies: bool = False, earth: Earth = "sphere"
) -> ReferenceIndex:
    """Make the index of a reference set: degrees of WGS 84, float64 of shape (n_references,).

    Rows that are not valid are kept, and never matched. With `copies` the tree holds all points
    that are equal, as `within` and `count_within` need; without, it leaves out those that no answer
    of `nearest` can name, which makes it faster. TypeError says that these are no arrays of real
    numbers on one device; ValueError that they differ in length, or are longer than rows can be
    numbered: 2^32 on a CPU, 2^31 - 1 on a GPU.
    """
    if earth not in EARTHS:
        raise ValueError(f"earth must be one of {', '.join(EARTHS)}, got {earth!r}")
    tree = implementation(device_of(lat_deg), "tree")
    # Before anything takes memory.
    if lat_deg.size > tree.MAX_ROWS:
        raise ValueError(
            f"references must be {tree.MAX_ROWS} rows at most, got {lat_deg.size}: make an index "
            "of each part, `find` in it, and `merge` what was found"
        )
    lat_deg, lon_deg, _ = coordinate_pair(lat_deg, lon_deg)
    vectors, standing = tree.build(lat_deg, lon_deg, copies=copies, earth=earth)
    return ReferenceIndex(vectors, standing, earth)
