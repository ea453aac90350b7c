"""What can keep a question from being answered, beside the request and the engine."""

from __future__ import annotations

from caldrix.errors import CaldrixError, quoted


class UnfitModel(CaldrixError):
    """The loaded model cannot answer any question of this kind."""


class NoTemplate(UnfitModel):
    """The zero-shot reading asks by way of the chat template."""

    def __init__(self) -> None:
        super().__init__("the model has no chat template; /v1/systemone needs one")


class NoLabelToken(UnfitModel):
    """A label cannot be read as one next token."""

    def __init__(self, label: str, why: str) -> None:
        super().__init__(
            f"/v1/systemone needs one token for each label, and this model's tokenizer makes "
            f"{why} of the label {quoted(label)}; serve another model"
        )
        self.label = label


class OutOfLimits(CaldrixError):
    """A request asks for what its reading does not do; ``path`` leads to it from the question."""

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


class StateTooLong(CaldrixError):
    """A state has more tokens than a decider was made to read."""

    def __init__(self, count: int, most: int, *, at_least: bool = False) -> None:
        tokens = f"at least {count} tokens" if at_least else f"{count} tokens"
        super().__init__(
            f"the state is {tokens}, and this model takes {most} at most; send a shorter state"
        )
        self.count, self.most = count, most


class UnusableReading(CaldrixError):
    """The logits of a question's labels give no probabilities."""

    def __init__(self) -> None:
        super().__init__("the model gave no usable reading for a question")
