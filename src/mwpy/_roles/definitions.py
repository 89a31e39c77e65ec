"""Makes the definition of each task algorithm that a master algorithm uses, before its first task."""

from __future__ import annotations

from attrs import define, field

from mwpy._roles.access import Access
from mwpy._system import packages
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import PYTHON, Algorithm
from mwpy._values.messages import AlgorithmDefinition
from mwpy._values.records import AlgorithmDefined

__all__ = ["Definitions"]


@define(eq=False)
class Definitions:
    """The definitions of one master.

    Args:
        main_by_value: whether what is defined in `__main__` travels by value.
    """

    access: Access
    codec: Codec
    main_by_value: bool
    known: dict[Algorithm, AlgorithmDefinition] = field(factory=dict)
    """The algorithms that are defined, each with its definition. The next definition gets their count as its number."""

    def define(self, algorithm: Algorithm) -> AlgorithmDefinition:
        """Define an algorithm and hand the definition over to the core.

        Raises:
            ArgumentNotPicklable: it travels by value and cannot be pickled; the caller's fault.
        """
        reference = algorithm.reference
        if self.main_by_value and reference.startswith("__main__:"):
            reference = ""
        function = b"" if reference else self.codec.dumps_function(algorithm.function, algorithm.name)
        definition = AlgorithmDefinition(
            number=len(self.known),
            name=algorithm.name,
            reference=reference,
            digest=algorithm.digest if reference else "",
            python=PYTHON,
            packages=packages.used_by(algorithm.function, by_value=not reference),
        )
        self.access.io.definitions.append(AlgorithmDefined(definition, function))
        self.known[algorithm] = definition
        return definition
