"""A checkpoint's tensors under the names that families use, and which of them were read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from caldrix.models.fields import UnsupportedModel
from caldrix.weights.tensor import Tensor


class NamedTensors:
    """Finds tensors by a family's names and keeps account of them: none may be left unread.

    ``names`` gives a weight's possible names in the files; ``where`` names the files for messages.
    """

    def __init__(
        self,
        where: str,
        tensors: Mapping[str, Tensor],
        names: Callable[[str], Sequence[str]],
    ) -> None:
        self.where = where
        self._tensors = tensors
        self._names = names
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return any(candidate in self._tensors for candidate in self._names(name))

    def read(self, name: str) -> Tensor:
        """The tensor of that name. Raises UnsupportedModel where there is none."""
        candidates = self._names(name)
        for candidate in candidates:
            if candidate in self._tensors:
                self._read.add(candidate)
                return self._tensors[candidate]
        raise UnsupportedModel(f"{self.where} lacks the tensor {candidates[0]}")

    def read_shaped(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that name, which must have the shape. Raises UnsupportedModel."""
        found = self.read(name)
        if found.shape != shape:
            raise UnsupportedModel(
                f"{self.where}: {found.name} has shape {list(found.shape)}, but by the model's "
                f"description it should be {list(shape)}"
            )
        return found

    def leave_out(self, prefix: str) -> None:
        """Takes the tensors whose names in the files begin so for read: they aren't served."""
        self._read.update(name for name in self._tensors if name.startswith(prefix))

    def unread(self) -> Iterator[str]:
        """The files' names of the tensors that nobody has read."""
        return (name for name in self._tensors if name not in self._read)
